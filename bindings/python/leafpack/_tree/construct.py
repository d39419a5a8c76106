"""Trees from Python's other structures, numpy's and torch's, and back."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping

import torch

from leafpack._tree.common import TensorDict, ops
from leafpack._tree.contexts import remember


def finished(tree, device=None, names=None, lock=False):
    """`tree` with this device, these names and locked, as far as they are asked for."""
    if device is not None:
        tree = ops.to(tree, torch.device(device), None, False)
    if names is not None:
        ops.set_names(tree, names)
    if lock:
        ops.lock(tree)
    return tree


def auto_batch_size_(self, batch_dims=None, keep_compliant_size=False):
    """Makes the batch size as long as the leaves allow, here and below; at most `batch_dims` dimensions."""
    shapes = []
    for value in ops.values(self, False, False):
        if isinstance(value, TensorDict):
            if not (
                keep_compliant_size
                and batch_dims is not None
                and len(value.batch_size) >= batch_dims
            ):
                ops.set_batch_size(value, ())
                auto_batch_size_(value, batch_dims)
            if not ops.is_empty(value):
                shapes.append(value.batch_size)
        elif isinstance(value, torch.Tensor):
            shapes.append(value.shape)
    if not shapes:
        return self
    common = []
    for sizes in zip(*shapes):
        if len(frozenset(sizes)) > 1 or (batch_dims is not None and len(common) == batch_dims):
            break
        common.append(sizes[0])
    ops.set_batch_size(self, tuple(common))
    return self


def _with_batch(tree, auto_batch_size, batch_dims, batch_size):
    if batch_size is not None and (auto_batch_size or batch_dims is not None):
        raise ValueError("give either batch_size, or auto_batch_size and batch_dims")
    if auto_batch_size or batch_dims is not None:
        auto_batch_size_(tree, batch_dims)
    return tree


def from_dict(
    cls,
    input_dict,
    *,
    auto_batch_size=None,
    batch_size=None,
    device=None,
    batch_dims=None,
    names=None,
):
    """A tree of a dict, which may be nested. Its nodes have the batch size too."""
    if isinstance(input_dict, TensorDict):
        return input_dict
    tree = cls(dict(input_dict), batch_size)
    return finished(_with_batch(tree, auto_batch_size, batch_dims, batch_size), device, names)


def from_dict_instance(self, input_dict, **options):
    """from_dict."""
    return from_dict(type(self), input_dict, **options)


def _converted(value):
    """Arrays, named tuples and dataclasses below `value` as tensors and dicts."""
    if isinstance(value, (torch.Tensor, TensorDict)) or value is None:
        return value
    if hasattr(value, "batch_size"):
        return TensorDict.from_tensordict(value)
    if isinstance(value, Mapping):
        return {key: _converted(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _converted(getattr(value, name)) for name in value._fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _converted(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_converted(item) for item in value]
    kind = getattr(getattr(value, "dtype", None), "fields", None)
    if kind:
        return {name: _converted(value[name]) for name in kind}
    if hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__"):
        return _tensor(value)
    return value


def _tensor(array):
    """A tensor over the memory of an array of numpy, or of any library that knows DLPack."""
    if hasattr(array, "__array_interface__"):
        return torch.as_tensor(array)
    return torch.from_dlpack(array)


def from_any(cls, obj, *, auto_batch_size=False, batch_dims=None, device=None, batch_size=None):
    """A tree of mappings, lists, named tuples, dataclasses, tensordicts, and arrays of numpy or DLPack.

    Nothing is copied where the memory can be shared. Places in a list are positions.
    """
    children = _converted(obj)
    if isinstance(children, TensorDict):
        return finished(_with_batch(children, auto_batch_size, batch_dims, batch_size), device)
    if isinstance(children, list):
        children = dict(enumerate(children))
    if not isinstance(children, dict):
        raise TypeError(f"a {type(obj).__name__} is no tree")
    tree = cls(children, batch_size)
    return finished(_with_batch(tree, auto_batch_size, batch_dims, batch_size), device)


def from_pytree(cls, pytree, *, batch_size=None, auto_batch_size=False, batch_dims=None):
    """A tree of dicts, lists and tuples of tensors. to_pytree gives dicts and lists back."""
    return from_any(
        cls, pytree, auto_batch_size=auto_batch_size, batch_dims=batch_dims, batch_size=batch_size
    )


def to_pytree(self):
    """Nested dicts of the leaves; nodes whose keys are 0, 1, 2, ... become lists."""
    keys = ops.keys(self, False, False)
    values = [
        to_pytree(value) if isinstance(value, TensorDict) else value
        for value in ops.values(self, False, False)
    ]
    if keys and keys == list(range(len(keys))):
        return values
    return dict(zip(keys, values))


def numpy(self):
    """Nested dicts of numpy's arrays over the same memory. Plain values stay."""
    result = {}
    for key, value in ops.items(self, False, False):
        if isinstance(value, TensorDict):
            value = numpy(value)
        elif isinstance(value, torch.Tensor):
            value = value.numpy()
        result[key] = value
    return result


def to_struct_array(self):
    """numpy's structured array of the batch, one field for each tensor of the first level; a copy."""
    import numpy

    count = len(self.batch_size)
    items = _array_items(self)
    kind = [(key, array.dtype, array.shape[count:]) for key, array in items]
    result = numpy.empty(tuple(self.batch_size), dtype=kind)
    for key, array in items:
        result[key] = array
    return result


def _array_items(tree):
    result = []
    for key, value in ops.items(tree, False, False):
        if isinstance(value, TensorDict):
            value = to_struct_array(value)
        elif isinstance(value, torch.Tensor):
            value = value.numpy()
        else:
            raise TypeError(f"[{key!r}]: a structured array holds tensors only")
        result.append((str(key), value))
    return result


def from_struct_array(
    cls, struct_array, *, auto_batch_size=False, batch_dims=None, device=None, batch_size=None
):
    """A tree of a structured array of numpy; the shape of the array is the batch size unless told otherwise."""
    if not auto_batch_size and batch_dims is None and batch_size is None:
        batch_size = struct_array.shape
    children = {name: _field(struct_array[name]) for name in struct_array.dtype.names}
    tree = cls(children, batch_size)
    return finished(_with_batch(tree, auto_batch_size, batch_dims, batch_size), device)


def _field(array):
    if array.dtype.names:
        return {name: _field(array[name]) for name in array.dtype.names}
    # numpy lets a field begin anywhere; torch wants whole elements between two of them.
    if any(stride % array.dtype.itemsize or stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.as_tensor(array)


def to_namedtuple(self, dest_cls=None):
    """A named tuple of the first level; nodes become named tuples too."""
    import collections

    values = {
        key: to_namedtuple(value) if isinstance(value, TensorDict) else value
        for key, value in ops.items(self, False, False)
    }
    if dest_cls is None:
        dest_cls = collections.namedtuple("GenericDict", values)
    return dest_cls(**values)


def fromkeys(cls, keys, value=0):
    """A tree without batch dimensions that has `value` at each key."""
    tree = cls()
    for key in keys:
        tree._set(key, value if isinstance(value, torch.Tensor) else torch.tensor(value))
    return tree


def from_module(cls, module, as_module=False, lock=False, use_state_dict=False, filter_empty=True):
    """The parameters and buffers of a module, not copied: one node for each submodule."""
    if as_module:
        raise TypeError("from_module: a tree is no module")
    tree = cls()
    if use_state_dict:
        source = module.state_dict(keep_vars=True).items()
    else:
        source = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
    if not filter_empty:
        for name, _ in module.named_modules(remove_duplicate=False):
            if name:
                tree._set(tuple(name.split(".")), cls())
    for name, value in source:
        tree._set(tuple(name.split(".")), value)
    return finished(tree, lock=lock)


def to_module(self, module, *, inplace=False, use_state_dict=False, return_swap=True):
    """Puts the tensors in place of those of a module, or copies them into these; returns those that were there.

    `with tree.to_module(module):` puts them back at its end.
    """
    before = from_module(TensorDict, module)
    targets = []
    for path, leaf in ops.items(self, True, True):
        parts = path if isinstance(path, tuple) else (path,)
        owner = module
        for part in parts[:-1]:
            owner = owner._modules.get(part) if isinstance(part, str) else None
            if owner is None:
                raise KeyError(f"{path!r}: the module has no submodule {part!r}")
        table = next((t for t in (owner._parameters, owner._buffers) if parts[-1] in t), None)
        if table is None:
            raise KeyError(f"{path!r}: the module has no parameter or buffer there")
        if table[parts[-1]] is not None and leaf.shape != table[parts[-1]].shape:
            raise ValueError(
                f"{path!r}: shape {list(leaf.shape)}, the module has {list(table[parts[-1]].shape)}"
            )
        targets.append((owner, table, parts[-1], leaf))
    if inplace:
        swap = ops.clone(before, True) if return_swap else None
        with torch.no_grad():
            for _, table, name, leaf in targets:
                table[name].copy_(leaf)
        if return_swap:
            remember(swap, _putting_back(module, True))
        return swap
    for _, table, name, leaf in targets:
        table[name] = leaf
    if not return_swap:
        return None
    remember(before, _putting_back(module, False))
    return before


def _putting_back(module, inplace):
    module = weakref.ref(module)

    def undo(tree):
        if module() is not None:
            to_module(tree, module(), inplace=inplace, return_swap=False)

    return undo


def from_modules(
    cls, *modules, as_module=False, lock=True, use_state_dict=False, lazy_stack=False
):
    """The parameters and buffers of modules of one structure, stacked: copies that are leaves of autograd where all are
    parameters that want gradients. With `lazy_stack` a LazyStack of trees that are not copied.
    """
    if as_module:
        raise TypeError("from_modules: a tree is no module")
    trees = [from_module(cls, module, use_state_dict=use_state_dict) for module in modules]
    if not trees:
        raise ValueError("from_modules: no module is given")
    if lazy_stack:
        result = cls.lazy_stack(trees)
        return result.lock_() if lock else result
    result = ops.stack([ops.detach(tree) for tree in trees], 0)
    for path, leaf in ops.items(result, True, True):
        if isinstance(leaf, torch.Tensor) and all(tree._get(path).requires_grad for tree in trees):
            leaf.requires_grad_()
    return finished(result, lock=lock)


def from_list(
    cls, input, *, auto_batch_size=None, batch_size=None, device=None, batch_dims=None, names=None, lazy=None
):  # fmt: skip
    """Dicts or trees one after the other, which become a new first batch dimension.

    Where they differ in keys or shapes, a LazyStack (with `lazy` False an error, with True always one).
    """
    trees = [item if isinstance(item, TensorDict) else from_any(cls, item) for item in input]
    if not trees:
        raise ValueError("from_list: the list is empty")
    if lazy:
        result = cls.lazy_stack(trees)
    else:
        result = ops.stack(trees, 0) if lazy is False else cls.maybe_dense_stack(trees)
    if not isinstance(result, TensorDict):
        if auto_batch_size or batch_size is not None or batch_dims is not None or device is not None:
            raise ValueError("from_list: a lazy stack has the batch size and device of its trees")
    else:
        if batch_size is not None:
            ops.set_batch_size(result, tuple(batch_size))
        result = finished(_with_batch(result, auto_batch_size, batch_dims, batch_size), device)
    if names is not None:
        result.names = names
    return result


def tolist(self, *, convert_tensors=False):
    """Nested lists of dicts along the batch dimensions; with `convert_tensors` tensors become lists and numbers."""
    if self.batch_size:
        return [tolist(part, convert_tensors=convert_tensors) for part in ops.unbind(self, 0)]
    return to_dict(self, convert_tensors=convert_tensors)


def to_dict(self, *, retain_none=True, convert_tensors=False):
    """Nested dicts of the leaves; with `convert_tensors` True of lists and numbers, with "numpy" of arrays."""
    result = {}
    for key, value in ops.items(self, False, False):
        if isinstance(value, TensorDict):
            value = to_dict(value, retain_none=retain_none, convert_tensors=convert_tensors)
        elif isinstance(value, torch.Tensor) and convert_tensors:
            value = value.numpy() if convert_tensors == "numpy" else value.tolist()
        elif value is None and not retain_none:
            continue
        result[key] = value
    return result


METHODS = {
    function.__name__: function
    for function in (
        auto_batch_size_, from_dict_instance, to_pytree, numpy, to_struct_array, to_namedtuple, to_module, tolist, to_dict,
    )
}  # fmt: skip
METHODS |= {
    function.__name__: classmethod(function)
    for function in (
        from_dict, from_any, from_pytree, from_struct_array, fromkeys, from_module, from_modules, from_list,
    )
}  # fmt: skip
METHODS |= {
    name: METHODS["from_any"] for name in ("from_namedtuple", "from_dataclass", "from_tuple")
}
