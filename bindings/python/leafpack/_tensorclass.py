"""tensorclass: classes with declared fields around a tree, as tensordict.tensorclass makes them."""

from __future__ import annotations

import dataclasses
import inspect
import typing

import torch

from leafpack._tree.common import NO_VALUE, TensorDict
from leafpack._tree.interop import as_tree
from leafpack._tree.lazy import (
    LazyStack,
    lazy_stack as _lazy_stack,
    maybe_dense_stack as _maybe_dense_stack,
)

_NUMBERS = (bool, int, float)
_PLAIN = (bool, int, float, str, bytes, list)
_OWN = ("batch_size", "device", "names", "shape")


def is_tensorclass(value) -> bool:
    """Whether `value` is a class that leafpack.tensorclass made, or an instance of one."""
    cls = value if isinstance(value, type) else type(value)
    return getattr(cls, "_leafpack_tensorclass", False)


def tensorclass(
    cls=None, *, autocast=False, frozen=False, nocast=False, shadow=False, tensor_only=False, kw_only=False
):  # fmt: skip
    """Makes a class of declared fields into one whose instances are trees with a batch size.

        @leafpack.tensorclass
        class Batch:
            obs: torch.Tensor
            inner: Batch | None = None
            note: str = ""

        batch = Batch(obs=torch.ones(4, 3), batch_size=[4])
        batch[0].obs, torch.stack([batch, batch]), batch.to(torch.float64)

    Every operation of leafpack.TensorDict is a method; results with no other fields are of the class. A field of
    None does not stand in the tree. Numbers and arrays become tensors in fields that are not declared as numbers,
    unless `nocast`. With `autocast` values are made what their field is declared as; with `frozen` fields cannot be
    set. A field with the name of a method is an error unless `shadow`. With `tensor_only` fields are declared as tensors
    and hold tensors and trees only, whatever can be made a tensor becomes one, and they are read without a look at
    their declarations. With `kw_only` fields are given by name.
    """

    def make(cls):
        return _make(cls, autocast, frozen, nocast, shadow, tensor_only, kw_only)

    return make if cls is None else make(cls)


def _make(
    cls, autocast=False, frozen=False, nocast=False, shadow=False, tensor_only=False, kw_only=False
):
    if "_leafpack_tensorclass" in cls.__dict__:
        raise TypeError(f"{cls.__name__} is a tensorclass already")
    if nocast and (autocast or tensor_only):
        raise TypeError("nocast excludes autocast and tensor_only")
    own_repr = cls.__dict__.get("__repr__")
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for field in fields.values():
        if isinstance(field.default, property):  # that of a tensorclass above with this field
            field.default = dataclasses.MISSING
    for name in fields:
        if name in _OWN or (hasattr(TensorDict, name) and not shadow):
            raise AttributeError(
                f"{cls.__name__}.{name}: leafpack.TensorDict has a method of this name; shadow=True allows the field"
            )
    cls._leafpack_tensorclass = True
    cls._fields, cls._frozen, cls._autocast, cls._nocast = fields, frozen, autocast, nocast
    cls._tensor_only = tensor_only
    if tensor_only:
        for name in fields:
            hint = _hint(cls, name)
            if hint is not None and not (isinstance(hint, type) and issubclass(hint, torch.Tensor)):
                raise TypeError(
                    f"{cls.__name__}.{name}: with tensor_only a field is declared as a tensor, not as {hint}"
                )
    cls.__init__ = _init_of(cls, fields)
    for name in fields:
        setattr(cls, name, property(*_accessors(name, tensor_only)))
    for name, method in _METHODS.items():
        if name != "__repr__" or own_repr is None:
            setattr(cls, name, method)
    for name in _DUNDERS:
        setattr(cls, name, _forwarded(name))
    return cls


def _init_of(cls, fields):
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for field in fields.values():
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = NO_VALUE
        elif default is dataclasses.MISSING:
            default = inspect.Parameter.empty
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default)
            if field.kw_only
            else inspect.Parameter(
                field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default
            )
        )
    for name in ("batch_size", "device", "names"):
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None))
    signature = inspect.Signature(sorted(parameters, key=lambda p: p.kind))

    def __init__(self, *args, **kwargs):
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: {error}") from None
        bound.apply_defaults()
        given = dict(bound.arguments)
        del given["self"]
        batch_size, device, names = (given.pop(name) for name in ("batch_size", "device", "names"))
        tree = TensorDict(batch_size=batch_size, device=device)
        object.__setattr__(self, "_tensordict", tree)
        for name, value in given.items():
            _store(self, name, fields[name].default_factory() if value is NO_VALUE else value)
        if names is not None:
            tree.names = names
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    __init__.__signature__ = signature
    return __init__


def _hint(cls, name):
    """What a field is declared as, with None taken out of a union."""
    hints = cls.__dict__.get("_hints")
    if hints is None:
        try:
            hints = typing.get_type_hints(cls, localns={cls.__name__: cls})
        except (
            NameError
        ):  # a name that is not defined yet, or never: its field is taken as it comes
            hints = {}
            for field in cls._fields.values():
                if isinstance(field.type, type):
                    hints[field.name] = field.type
        cls._hints = hints
    hint = hints.get(name)
    choices = [choice for choice in typing.get_args(hint) if choice is not type(None)]
    return choices[0] if len(choices) == 1 and typing.get_origin(hint) is not list else hint


def _store(self, name, value):
    """Puts the value of a field into the tree."""
    cls = type(self)
    hint = _hint(cls, name)
    tree = self._tensordict
    if value is None:
        if name in tree:
            tree.pop(name)
        return
    if cls._autocast:
        value = _cast(value, hint, tree)
    if cls._tensor_only and isinstance(value, (*_NUMBERS, list, tuple)):
        value = torch.as_tensor(value)
    elif cls._tensor_only and isinstance(value, (str, bytes)):
        raise TypeError(f"{cls.__name__}.{name}: a {type(value).__name__} is no tensor")
    if is_tensorclass(value):
        value = value._tensordict
    elif (
        hasattr(value, "_tensordict")
        and hasattr(value, "batch_size")
        and not isinstance(value, torch.Tensor)
    ):
        value = TensorDict.from_tensordict(value)
    elif hasattr(value, "__array__") and not isinstance(value, torch.Tensor) and not cls._nocast:
        value = torch.as_tensor(value)
    elif type(value) in _NUMBERS and not cls._nocast and hint not in _PLAIN:
        value = torch.tensor(value)
    elif isinstance(value, dict):
        value = as_tree(value, tree)
    elif not isinstance(value, (torch.Tensor, TensorDict, LazyStack, *_PLAIN)):
        raise TypeError(
            f"{cls.__name__}.{name}: a value of type {type(value).__name__} is neither a tensor, a tree nor a str, int,"
            " float, bool, bytes or a list of these"
        )
    if isinstance(tree, LazyStack) and isinstance(value, list):
        for part in tree.tensordicts:
            part._set(name, value)
    else:
        tree.set(name, value)


def _cast(value, hint, tree):
    if hint is torch.Tensor and not isinstance(value, torch.Tensor):
        return torch.as_tensor(value)
    if hint in (int, float, bool, str, bytes) and not isinstance(value, (torch.Tensor, hint)):
        return hint(value)
    if is_tensorclass(hint) and isinstance(value, dict):
        return hint.from_dict(value, batch_size=tree.batch_size)
    return value


def _load(self, name):
    tree = self._tensordict
    value = tree.get(name, None)
    if isinstance(value, (TensorDict, LazyStack)):
        hint = _hint(type(self), name)
        if is_tensorclass(hint):
            return _around(hint, value)
        if (hint is list or typing.get_origin(hint) is list) and isinstance(value, TensorDict):
            return value.to_pytree() if value.keys() else []
    return value


def _accessors(name, tensor_only):
    if tensor_only:

        def read(self):
            return self._tensordict.get(name)

    else:

        def read(self):
            return _load(self, name)

    def write(self, value):
        if self._frozen:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        _store(self, name, value)

    return read, write


def _around(cls, tree):
    """An instance around a tree that is there."""
    self = cls.__new__(cls)
    object.__setattr__(self, "_tensordict", tree)
    return self


def _rebuild(cls, tree):
    return _around(cls, tree)


def _bare(value):
    """`value` with trees in place of tensorclasses."""
    if is_tensorclass(value) and not isinstance(value, type):
        return value._tensordict
    if isinstance(value, (list, tuple)) and any(is_tensorclass(item) for item in value):
        return type(value)(map(_bare, value))
    return value


def _dressed(self, value):
    """`value` with trees that have no other entries than the fields in the class of `self`."""
    if isinstance(value, (TensorDict, LazyStack)):
        if isinstance(value, TensorDict) and isinstance(self._tensordict, TensorDict):
            if value.is_same(self._tensordict):
                return self
        elif value is self._tensordict:
            return self
        if all(key in self._fields for key in value.keys()):
            return _around(type(self), value)
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value
    if type(value) in (list, tuple) and value and isinstance(value[0], (TensorDict, LazyStack)):
        return type(value)(_dressed(self, item) for item in value)
    return value


def _forwarded(name):
    def method(self, *args, **kwargs):
        function = getattr(self._tensordict, name)
        result = function(*map(_bare, args), **{key: _bare(value) for key, value in kwargs.items()})
        return _dressed(self, result)

    method.__name__ = name
    return method


def _getattr(self, name):
    if name.startswith("__") or name == "_tensordict":
        raise AttributeError(name)
    try:
        found = getattr(self._tensordict, name)
    except AttributeError:
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}; its fields are {sorted(self._fields)}"
        ) from None
    if callable(found):
        return _forwarded(name).__get__(self)
    return _dressed(self, found)


def _setattr(self, name, value):
    if name in self._fields or isinstance(inspect.getattr_static(type(self), name, None), property):
        object.__setattr__(self, name, value)
    elif name in ("batch_size", "names"):
        setattr(self._tensordict, name, value)
    else:
        raise AttributeError(
            f"{type(self).__name__} has no field {name!r}; its fields are {sorted(self._fields)}"
        )


def _get(self, key, default=None):
    return (
        _load(self, key)
        if key in self._fields and key in self._tensordict
        else self._tensordict.get(key, default)
    )


def _set(self, key, item, inplace=False, *, non_blocking=False):
    first = key[0] if isinstance(key, tuple) and key else key
    if first not in self._fields:
        raise AttributeError(
            f"{type(self).__name__} has no field {first!r}; its fields are {sorted(self._fields)}"
        )
    if first is key and not inplace:
        setattr(self, key, item)
    else:
        self._tensordict.set(key, _bare(item), inplace)
    return self


def _getitem(self, index):
    if isinstance(index, str) or (
        isinstance(index, tuple) and any(isinstance(i, str) for i in index)
    ):
        raise ValueError(
            f"{index!r}: a tensorclass is indexed along its batch; a field is an attribute"
        )
    return _dressed(self, self._tensordict[index])


def _setitem(self, index, value):
    if isinstance(index, str) or (
        isinstance(index, tuple) and any(isinstance(i, str) for i in index)
    ):
        raise ValueError(
            f"{index!r}: a tensorclass is indexed along its batch; a field is an attribute"
        )
    self._tensordict[index] = _bare(value)


def _iter(self):
    return (_dressed(self, part) for part in self._tensordict)


def _repr(self):
    listed = []
    for name in self._fields:
        value = _load(self, name)
        if isinstance(value, torch.Tensor):
            shown = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        else:
            shown = repr(value).replace("\n", "\n  ")
        listed.append(f"\n  {name}={shown}")
    return (
        f"{type(self).__name__}(batch_size={list(self._tensordict.batch_size)},{','.join(listed)})"
    )


def _reduce(self):
    return _rebuild, (type(self), self._tensordict)


def _from_tree(cls, tree, non_tensordict=None):
    """An instance around a leafpack.TensorDict, or around the leaves of a tensordict; nothing is copied."""
    tree = _bare(tree)
    if not isinstance(tree, (TensorDict, LazyStack)):
        tree = TensorDict.from_tensordict(tree)
    strange = [key for key in tree.keys() if key not in cls._fields]
    if strange:
        raise ValueError(
            f"{cls.__name__} has no field {strange[0]!r}; its fields are {sorted(cls._fields)}"
        )
    self = _around(cls, tree)
    for name, value in (non_tensordict or {}).items():
        _store(self, name, value)
    return self


def _from_dict(cls, input_dict, **options):
    """An instance of a dict of its fields; options as leafpack.TensorDict.from_dict has them."""
    return _from_tree(
        cls,
        TensorDict.from_dict(
            {k: _bare(v) for k, v in input_dict.items() if v is not None}, **options
        ),
    )


def _to_tree(self):
    """The leafpack.TensorDict inside: changing it changes the instance."""
    return self._tensordict


def _to_tensordict(self, *, retain_none=None):
    """A tensordict.TensorDict of the same tensors."""
    return self._tensordict.to_tensordict()


def _to_dict(self, **options):
    """Nested dicts of the fields, with None for those that are not there."""
    return {**dict.fromkeys(self._fields), **self._tensordict.to_dict(**options)}


def _replace(self, **changes):
    """A copy with other values in these fields; the others are shared."""
    result = _around(type(self), self._tensordict.copy())
    for name, value in changes.items():
        if name not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}")
        _store(result, name, value)
    return result


def _stack(cls, input, dim=0, *, out=None):
    """Instances along a new batch dimension, copied."""
    return _combined(TensorDict.stack, input, dim, out)


def _cat(cls, input, dim=0, *, out=None):
    """Instances one behind the other, copied."""
    return _combined(TensorDict.cat, input, dim, out)


def _lazily(cls, input, dim=0, *, out=None):
    """Instances along a new batch dimension, not copied: they may differ in shapes."""
    return _combined(_lazy_stack, input, dim, out)


def _maybe(cls, input, dim=0, *, out=None):
    """Copied together where all have one layout, else not."""
    return _combined(_maybe_dense_stack, input, dim, out)


def _combined(combine, input, dim, out):
    items = list(input)
    if out is not None:
        combine(list(map(_bare, items)), dim, out=_bare(out))
        return out
    return (
        _dressed(items[0], combine(list(map(_bare, items)), dim)) if items else combine(items, dim)
    )


def _torch_function(cls, func, types, args=(), kwargs=None):
    given = (*args, *(kwargs or {}).values())
    first = next(
        (
            v
            for arg in given
            for v in (arg if isinstance(arg, (list, tuple)) else (arg,))
            if is_tensorclass(v)
        ),
        None,
    )
    if first is None:
        return NotImplemented
    tree = first._tensordict
    result = type(tree).__torch_function__(
        func,
        types,
        tuple(map(_bare, args)),
        {key: _bare(value) for key, value in (kwargs or {}).items()},
    )
    return result if result is NotImplemented else _dressed(first, result)


def _field_list(cls):
    """The declared fields, as dataclasses.fields gives them."""
    return tuple(cls._fields.values())


_DUNDERS = """
    __len__ __bool__ __neg__ __abs__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __add__
    __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__ __pow__
    __rpow__ __ipow__
""".split()
_METHODS = {
    "__getattr__": _getattr,
    "__setattr__": _setattr,
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "__iter__": _iter,
    "__repr__": _repr,
    "__reduce__": _reduce,
    "__hash__": None,
    "get": _get,
    "set": _set,
    "replace": _replace,
    "to_dict": _to_dict,
    "to_tensordict": _to_tensordict,
    "to_tree": _to_tree,
    "from_tensordict": classmethod(_from_tree),
    "from_dict": classmethod(_from_dict),
    "stack": classmethod(_stack),
    "cat": classmethod(_cat),
    "lazy_stack": classmethod(_lazily),
    "maybe_dense_stack": classmethod(_maybe),
    "fields": classmethod(_field_list),
    "__torch_function__": classmethod(_torch_function),
}


_FLAGS = ("autocast", "frozen", "nocast", "shadow", "tensor_only", "kw_only")


class TensorClass:
    """A base class that makes tensorclasses of those that inherit it.

        class Batch(leafpack.TensorClass, autocast=True):      # or TensorClass["autocast"]
            obs: torch.Tensor
            note: str = ""

    The options are those of leafpack.tensorclass; they hold for what inherits Batch too.
    """

    _flags = {}
    __getattr__ = _getattr

    def __init_subclass__(cls, *, _base=False, **flags):
        super().__init_subclass__()
        for name in flags:
            if name not in _FLAGS:
                raise TypeError(f"a TensorClass has the options {', '.join(_FLAGS)}, not {name!r}")
        cls._flags = {**cls._flags, **flags}
        if not _base:
            _make(cls, **cls._flags)

    def __class_getitem__(cls, flags):
        flags = flags if isinstance(flags, tuple) else (flags,)
        return type(cls.__name__, (cls,), {}, _base=True, **{str(name): True for name in flags})
