"""The methods of leafpack.TensorDict, under the names and signatures of tensordict.TensorDict.

The work is done by leafpack._C.ops; here stand the arguments. docs/tensordict.md says where results differ from
tensordict's on purpose.
"""

from __future__ import annotations

import collections
import errno
import os
from collections.abc import Mapping

import torch

from leafpack import _C

_ops = _C.ops
TensorDict = _C.TensorDict
_MISSING = object()


def _is_key(key) -> bool:
    """Whether what stands in brackets is a key: a str, or a tuple with one. Everything else is an index."""
    kind = type(key)
    return kind is str or (kind is tuple and any(type(part) is str for part in key))


def _tree(value, like, what="value"):
    """`value` as a leafpack.TensorDict; nodes of a dict get the batch size of `like`."""
    if isinstance(value, TensorDict):
        return value
    if hasattr(value, "batch_size"):
        return from_tensordict(TensorDict, value)
    if isinstance(value, Mapping):
        return TensorDict(dict(value), like.batch_size)
    raise TypeError(f"{what} must be a tree of tensors, not {type(value).__name__}")


def _sizes(args, *others):
    """The sizes in f(2, 3), f((2, 3)) or f(size=(2, 3))."""
    for other in others:
        if other is not None:
            if args:
                raise TypeError("sizes are given twice")
            return tuple(other)
    if len(args) == 1 and not hasattr(args[0], "__index__"):
        return tuple(args[0])
    return args


def _into(self, result, inplace):
    """`result`, or `self` with the children of `result`."""
    if not inplace:
        return result
    if self.is_locked:
        raise RuntimeError("the tree is locked: its structure cannot change")
    self.clear()
    _ops.update(self, result)
    return self


# ---- Keys.


def __getitem__(self, key):
    return self._get(key) if _is_key(key) else _ops.index(self, key)


def __setitem__(self, key, value):
    if _is_key(key):
        self._set(key, value)
    elif isinstance(value, (bool, int, float, complex)):
        _ops.fill_index(self, key, value)
    elif isinstance(value, torch.Tensor):
        if value.dim() > 0:
            raise ValueError("an index takes a tree or a number: a tensor does not say which leaf it is for")
        _ops.fill_index(self, key, value.item())
    else:
        part_size = () if isinstance(value, TensorDict) else _ops.index(self, key).batch_size
        tree = value if isinstance(value, TensorDict) else _with_batch_size(value, part_size)
        _ops.set_index(self, key, tree, False)


def _with_batch_size(value, batch_size):
    return _tree(value, TensorDict(batch_size=batch_size))


def __delitem__(self, key):
    self.erase(key)


def __len__(self):
    """The size of the first batch dimension; 0 without one."""
    sizes = self.batch_size
    return sizes[0] if sizes else 0


def __iter__(self):
    if not self.batch_size:
        raise TypeError(
            "a tree without batch dimensions cannot be iterated: keys(), values() and items() go over its entries"
        )
    return iter(_ops.unbind(self, 0))


def __bool__(self):
    raise RuntimeError(
        "a tree is neither true nor false: use is_empty(), len(tree.keys()) or (a == b).all()"
    )


def set(self, key, item, inplace=False):
    """Puts a tensor, a tree or a plain value at `key`. With `inplace`, copies into a tensor that is there."""
    if inplace and isinstance(item, torch.Tensor) and key in self:
        return set_(self, key, item)
    self._set(key, item)
    return self


def set_(self, key, item, *, cast=False):
    """Copies `item` into the tensor at `key`, also in a locked tree. Another dtype is an error unless `cast`."""
    _ops.set_in_place(self, key, item, cast)
    return self


def set_at_(self, key, value, index, *, cast=False):
    """Copies `value` into these positions of the tensor at `key`."""
    if not isinstance(value, torch.Tensor):
        value = torch.as_tensor(value, dtype=self._get(key).dtype)
    _ops.set_leaf_index(self, key, index, value, cast)
    return self


def get(self, key, default=None):
    """What stands at `key`, or `default`."""
    return self._get(key) if key in self else default


def setdefault(self, key, default):
    """What stands at `key`; `default`, which is put there, if nothing does."""
    if key not in self:
        self._set(key, default)
    return self._get(key)


def pop(self, key, default=_MISSING):
    """Takes away what stands at `key` and returns it. KeyError without a default if nothing does."""
    if default is not _MISSING and key not in self:
        return default
    return _ops.pop(self, key)


def del_(self, key):
    """Takes away what stands at `key`."""
    self.erase(key)
    return self


def rename_key_(self, old_key, new_key, safe=False):
    """Moves what stands at `old_key` to `new_key`. With `safe`, ValueError if something stands there."""
    _ops.rename_key(self, old_key, new_key, safe)
    return self


def keys(self, include_nested=False, leaves_only=False, *, sort=False):
    """A list of the keys, in canonical order (`sort` changes nothing); paths of nested ones are tuples."""
    return _ops.keys(self, include_nested, leaves_only)


def values(self, include_nested=False, leaves_only=False, *, sort=False):
    """A list of what stands at the keys."""
    return _ops.values(self, include_nested, leaves_only)


def items(self, include_nested=False, leaves_only=False, *, sort=False):
    """A list of keys and what stands there."""
    return _ops.items(self, include_nested, leaves_only)


def update(self, input_dict_or_td, clone=False, inplace=False, *, keys_to_update=None):
    """Sets all of a tree or a dict in this tree; where both have a node, goes on below."""
    source = _tree(input_dict_or_td, self, "input_dict_or_td")
    if keys_to_update is not None:
        source = _ops.select(source, _paths(keys_to_update), False)
    if inplace:
        return _update_where_there(self, source)
    if clone:
        source = _ops.clone(source, True)
    if source.is_same(self):
        return self
    _ops.update(self, source)
    return self


def _update_where_there(self, source):
    for key, value in _ops.items(source, True, True):
        if isinstance(value, torch.Tensor) and isinstance(get(self, key), torch.Tensor):
            _ops.set_in_place(self, key, value, False)
        else:
            self._set(key, value)
    return self


def update_(self, input_dict_or_td, clone=False, *, keys_to_update=None, cast=False):
    """Copies the tensors of a tree or a dict into those of this tree; at an error none is written."""
    source = _tree(input_dict_or_td, self, "input_dict_or_td")
    if keys_to_update is not None:
        source = _ops.select(source, _paths(keys_to_update), False)
    _ops.update_in_place(self, source, cast)
    return self


def copy_(self, tensordict):
    """update_ under torch's name."""
    return update_(self, tensordict)


def _paths(keys_given):
    if isinstance(keys_given, str) or _is_key(keys_given):
        return (keys_given,)
    return tuple(keys_given)


def select(self, *keys, inplace=False, strict=True):
    """A tree of these leaves and nodes only. With `strict`, KeyError if one is missing."""
    return _into(self, _ops.select(self, keys, strict), inplace)


def exclude(self, *keys, inplace=False):
    """A tree of all but these leaves and nodes."""
    return _into(self, _ops.exclude(self, keys), inplace)


def flatten_keys(self, separator=".", inplace=False):
    """A tree of one level; the parts of each path are joined. ValueError if two become one."""
    return _into(self, _ops.flatten_keys(self, separator), inplace)


def unflatten_keys(self, separator=".", inplace=False):
    """The other way round: names are split at `separator`."""
    return _into(self, _ops.unflatten_keys(self, separator), inplace)


def empty(self, recurse=False):
    """A tree without leaves, of this batch size; with `recurse`, with the nodes."""
    if recurse:
        return _ops.apply(self, lambda leaf: None, (), "none", None, False)
    result = TensorDict(batch_size=self.batch_size)
    if any(self.names):
        result.names = self.names
    return result


# ---- Functions of leaves.


def apply(self, fn, *others, batch_size=None, inplace=False, filter_empty=None):
    """A tree of what `fn` returns for each tensor (and those of `others` at its path); None drops the leaf.

    An exception of `fn` comes through as it is. With `inplace`, results are copied into the tensors that are there.
    """
    return _apply(self, fn, others, "none", batch_size, inplace, filter_empty)


def named_apply(
    self, fn, *others, nested_keys=False, batch_size=None, inplace=False, filter_empty=None
):
    """apply whose function gets the name of the leaf first; with `nested_keys`, its path."""
    names = "path" if nested_keys else "last"
    return _apply(self, fn, others, names, batch_size, inplace, filter_empty)


def apply_(self, fn, *others):
    """apply in place."""
    return _apply(self, fn, others, "none", None, True, None)


def _apply(self, fn, others, names, batch_size, inplace, filter_empty):
    others = tuple(_tree(other, self, "others") for other in others)
    result = _ops.apply(self, fn, others, names, batch_size, filter_empty)
    if not inplace:
        return result
    with torch.no_grad():
        _ops.update_in_place(self, result, True)
    return self


# ---- Shapes.


def split(self, split_size, dim=0):
    """Parts of this size, or of these sizes."""
    return _ops.split(self, split_size, dim)


def chunk(self, chunks, dim=0):
    """At most this many parts of equal size."""
    return _ops.chunk(self, chunks, dim)


def unbind(self, dim=0):
    """One tree per position of a batch dimension."""
    return _ops.unbind(self, dim)


def stack(input, dim=0):
    """Trees of one structure along a new batch dimension. torch.stack does the same."""
    return _ops.stack(input, dim)


def cat(input, dim=0):
    """Trees of one structure one behind the other. torch.cat does the same."""
    return _ops.cat(input, dim)


def view(self, *shape, size=None):
    """The batch in another shape; views."""
    return _ops.view(self, _sizes(shape, size))


def reshape(self, *shape, size=None):
    """The batch in another shape; leaves are copied where they must be."""
    return _ops.reshape(self, _sizes(shape, size))


def permute(self, *dims_list, dims=None):
    """Every batch dimension once, in a new order."""
    return _ops.permute(self, _sizes(dims_list, dims))


def transpose(self, dim0, dim1):
    """Two batch dimensions in each other's place."""
    return _ops.transpose(self, dim0, dim1)


def squeeze(self, dim=None):
    """Without `dim` if its size is 1; without `dim` given, without all of size 1."""
    return _ops.squeeze(self, dim)


def unsqueeze(self, dim):
    """With a new batch dimension of size 1."""
    return _ops.unsqueeze(self, dim)


def expand(self, *shape):
    """The batch broadcast to this shape; -1 keeps a size."""
    return _ops.expand(self, _sizes(shape))


def flatten(self, start_dim=0, end_dim=-1):
    """Batch dimensions merged into one."""
    return _ops.flatten(
        self, 0 if start_dim is None else start_dim, -1 if end_dim is None else end_dim
    )


def unflatten(self, dim, unflattened_size):
    """A batch dimension split into several."""
    return _ops.unflatten(self, dim, unflattened_size)


# ---- Copies and conversions.


def to(self, *args, **kwargs):
    """As torch.Tensor.to: a device, a dtype, or a tensor that has both; `non_blocking`."""
    device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    return _ops.to(self, device, dtype, non_blocking)


def _of_dtype(name, dtype):
    def method(self):
        return _ops.to(self, None, dtype, False)

    method.__name__ = name
    method.__doc__ = f"All tensors as {dtype}."
    return method


def cpu(self):
    """In CPU memory."""
    return _ops.to(self, torch.device("cpu"), None, False)


def cuda(self, device=None, *, non_blocking=False):
    """On a CUDA device, by default the current one."""
    if device is None:
        device = torch.cuda.current_device()
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return _ops.to(self, device, None, non_blocking)


def clone(self, recurse=True):
    """A copy; without `recurse`, new nodes with the same tensors. It is not locked."""
    return _ops.clone(self, recurse)


def copy(self):
    """New nodes with the same tensors."""
    return _ops.clone(self, False)


def contiguous(self):
    """Tensors that are not contiguous are copied."""
    return _ops.contiguous(self)


def detach(self):
    """Tensors over the same memory, without their history."""
    return _ops.detach(self)


def zero_(self):
    """Fills all tensors with zeros."""
    _ops.zero(self)
    return self


def requires_grad_(self, requires_grad=True):
    """Lets autograd follow all tensors, or no more."""
    _ops.requires_grad(self, requires_grad)
    return self


def grad(self):
    """The gradients of the tensors; None where there is none."""
    return _ops.grads(self)


def lock_(self):
    """Forbids changes of structure, here and below. Values may be written."""
    _ops.lock(self)
    return self


def unlock_(self):
    """Allows them again. RuntimeError if a tree above is locked."""
    _ops.unlock(self)
    return self


# ---- Measures and comparison.


def size(self, dim=None):
    """The batch size, or its size along `dim`."""
    return self.batch_size if dim is None else self.batch_size[dim]


def dim(self):
    """Number of batch dimensions."""
    return len(self.batch_size)


def numel(self):
    """Number of elements of the batch."""
    return _ops.batch_numel(self)


def bytes(self, *, count_duplicates=True):
    """Bytes of the elements of all tensors; without duplicates, of those that are not the same memory."""
    return _ops.bytes(self, count_duplicates)


def is_empty(self):
    """Whether no leaf stands in the whole tree."""
    return _ops.is_empty(self)


def allclose(self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
    """Whether both have one structure and nearly equal values."""
    return _ops.allclose(self, _tree(other, self, "other"), rtol, atol, equal_nan)


def equal(self, other):
    """Whether both have one structure, and equal shapes, dtypes and values."""
    return _ops.equal(self, _tree(other, self, "other"))


def _is_operand(other):
    return isinstance(other, (TensorDict, torch.Tensor, bool, int, float, complex, Mapping)) or (
        hasattr(other, "batch_size")
    )


def _elementwise(name, function):
    def method(self, other):
        if not _is_operand(other):
            return NotImplemented
        if isinstance(other, (torch.Tensor, int, float, complex)):
            return _ops.apply(self, lambda leaf: function(leaf, other), (), "none", None, None)
        return _ops.apply(self, function, (_tree(other, self),), "none", None, None)

    method.__name__ = name
    return method


def __eq__(self, other):
    if not _is_operand(other):
        return NotImplemented
    if isinstance(other, (torch.Tensor, int, float, complex)):
        return _ops.apply(self, lambda leaf: torch.eq(leaf, other), (), "none", None, None)
    return _ops.elements_equal(self, _tree(other, self))


def __ne__(self, other):
    equal = __eq__(self, other)
    return equal if equal is NotImplemented else __invert__(equal)


def __invert__(self):
    return _ops.apply(self, torch.bitwise_not, (), "none", None, None)


def all(self):
    """Whether all elements of all tensors are true."""
    return not any(leaf is not None and not bool(leaf.all()) for leaf in _tensors(self))


def any_(self):
    """Whether an element of a tensor is true."""
    return any(bool(leaf.any()) for leaf in _tensors(self))


def _tensors(self):
    return [leaf for leaf in _ops.values(self, True, True) if isinstance(leaf, torch.Tensor)]


# ---- Arithmetic.


def _operation(name, inplace=False):
    whole = getattr(_ops, name + "_" if inplace else name)
    per_leaf = getattr(torch, name)

    def method(self, other):
        if isinstance(other, torch.Tensor):
            if not inplace:
                return _ops.apply(self, lambda leaf: per_leaf(leaf, other), (), "none", None, None)
            for leaf in _tensors(self):
                getattr(leaf, name + "_")(other)
            return self
        if not isinstance(other, (TensorDict, int, float, complex)):
            other = _tree(other, self, "other")
        result = whole(self, other)
        return self if inplace else result

    method.__name__ = name + "_" if inplace else name
    method.__doc__ = (
        f"torch.{name} of all tensors with a number, a tensor, or the tensors of another tree"
        + (", in place." if inplace else ".")
    )
    return method


def _scaled(name, inplace=False):
    plain = _operation(name, inplace)
    whole = getattr(_ops, f"{name}_scaled" + ("_" if inplace else ""))

    def method(self, other, *, alpha=None):
        if alpha is None:
            return plain(self, other)
        if isinstance(other, (torch.Tensor, int, float, complex)):
            return plain(self, other * alpha)
        result = whole(self, _tree(other, self, "other"), alpha)
        return self if inplace else result

    method.__name__ = plain.__name__
    method.__doc__ = plain.__doc__[:-1] + ", times `alpha`."
    return method


def _operator(method, inplace=False):
    def operator(self, other):
        return method(self, other) if _is_operand(other) else NotImplemented

    return operator


def _unary(name, inplace):
    whole = getattr(_ops, name + "_" if inplace else name)

    def method(self):
        result = whole(self)
        return self if inplace else result

    method.__name__ = name + "_" if inplace else name
    method.__doc__ = f"{name} of all tensors" + (", in place." if inplace else ".")
    return method


def lerp(self, end, weight):
    """self + weight * (end - self)."""
    return _ops.lerp(self, _tree(end, self, "end"), weight)


def lerp_(self, end, weight):
    """lerp in place."""
    _ops.lerp_(self, _tree(end, self, "end"), weight)
    return self


def addcmul_(self, other1, other2, *, value=1):
    """Adds value * other1 * other2 in place."""
    _ops.addcmul_(self, _tree(other1, self), _tree(other2, self), value)
    return self


def addcdiv_(self, other1, other2, *, value=1):
    """Adds value * other1 / other2 in place."""
    _ops.addcdiv_(self, _tree(other1, self), _tree(other2, self), value)
    return self


def clamp(self, min=None, max=None):
    """torch.clamp of all tensors, with numbers or tensors."""
    return _ops.apply(self, lambda leaf: torch.clamp(leaf, min, max), (), "none", None, None)


def norm(self, *, ord=2.0):
    """The norm of every tensor: a tree without batch dimensions."""
    return _ops.leaf_norms(self, float(ord))


def total_norm(self, ord=2.0):
    """The norm of all elements of the tree together: a tensor."""
    return _ops.total_norm(self, float(ord))


def clip_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scales all tensors so that their common norm is at most `max_norm`; returns the norm before."""
    return _ops.clip_norm_(self, float(max_norm), float(norm_type), error_if_nonfinite)


def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """clip_norm_ of the gradients of the tensors, as torch.nn.utils.clip_grad_norm_ does."""
    return _ops.clip_norm_(
        _ops.grads(self), float(max_norm), float(norm_type), error_if_nonfinite
    )


# ---- State dicts.


def state_dict(self, destination=None, prefix="", keep_vars=False, flatten=True):
    """The leaves in an OrderedDict, under their paths joined by dots; nested dicts without `flatten`."""
    result = collections.OrderedDict() if destination is None else destination
    source = _ops.flatten_keys(self, ".") if flatten else self
    for key, value in _ops.items(source, False, False):
        if isinstance(value, TensorDict):
            value = state_dict(value, keep_vars=keep_vars, flatten=False)
        elif isinstance(value, torch.Tensor) and not keep_vars:
            value = value.detach()
        result[f"{prefix}{key}"] = value
    return result


def load_state_dict(self, state_dict, strict=True, assign=False, cast=False):
    """Copies the leaves of a state dict, flat or nested, into this tree; with `assign` they take the places.

    At an error (a missing leaf, one too many if `strict`, another shape or dtype) nothing has changed.
    """
    paths = {}
    for key in _ops.keys(self, True, True):
        paths[".".join(map(str, key)) if isinstance(key, tuple) else str(key)] = key
    state = TensorDict()
    for name, value in _flat(state_dict):
        state._set(paths.get(name, name), value)
    _ops.load(self, state, strict, assign, cast)
    return self


def _flat(state, prefix=""):
    for key, value in state.items():
        if isinstance(value, (Mapping, TensorDict)):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ---- One storage, and files.


def consolidate(self, *, alignment=64, device=None):
    """A copy in one storage, which collectives do not have to pack."""
    return _ops.consolidate(self, alignment, None if device is None else torch.device(device))


def is_consolidated(self):
    """Whether all tensors are views of one storage."""
    return _ops.consolidated_storage(self) is not None


def memmap(self, prefix, *, existsok=True, progress=None):
    """Writes the tree to a folder that tensordict reads too, and returns the tree that lies there, locked.

    `progress` is called with the bytes done and to do; False gives the work up.
    """
    if not existsok and os.path.lexists(prefix):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(prefix))
    _ops.save_memmap(self, os.fspath(prefix), existsok, progress)
    return lock_(_ops.load_memmap(os.fspath(prefix), True))


def load_memmap(prefix, *, mode="r+"):
    """The tree in a folder that memmap wrote, here or in tensordict. Mode "r" reads; "r+" writes through."""
    if mode not in ("r", "r+"):
        raise ValueError(f'mode must be "r" or "r+", not {mode!r}')
    return lock_(_ops.load_memmap(_present(prefix), mode == "r+"))


def _present(path):
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return path


def save_safetensors(tree, path, *, separator=".", metadata=None, progress=None):
    """Writes all tensors of a tree to a safetensors file, under their paths joined by `separator`.

    The new file takes the place of an old one when it is whole. What the format cannot hold is a ValueError that
    names it. `progress` is called with the bytes done and to do; False gives the work up.
    """
    tree = _tree(tree, TensorDict(), "tree")
    _ops.save_safetensors(tree, os.fspath(path), separator, metadata or {}, progress)


def load_safetensors(path, *, separator=".", memory_map=True, progress=None):
    """The tree in a safetensors file, whose names are split at `separator` (with "" they are kept).

    Leaves are views of a private memory map, read when they are touched, unless `memory_map` is False. A file that
    is not whole and valid is a ValueError that names file, tensor and offset.
    """
    return _ops.load_safetensors(_present(path), separator, memory_map, progress)


# ---- From and to other kinds of trees.


def from_tensordict(cls, source):
    """The leaves of a tensordict.TensorDict, not copied, with batch sizes, names of dimensions and device."""
    tree = cls._from_tree(source)
    _take_nodes(tree, source)
    device = getattr(source, "device", None)
    if device is not None and type(source).__name__ == "TensorDict":
        tree = _ops.to(tree, device, None, False)
    return tree


def _take_nodes(tree, source):
    import tensordict

    if type(source) is not tensordict.TensorDict:
        return
    if any(name is not None for name in source.names):
        _ops.set_names(tree, source.names)
    for key in source.keys():
        child = source._get_str(key, None)
        if type(child) is not tensordict.TensorDict:
            continue
        if key not in tree:
            tree._set(key, TensorDict(batch_size=child.batch_size))
        node = tree._get(key)
        if node.batch_size != child.batch_size:
            _ops.set_batch_size(node, child.batch_size)
        _take_nodes(node, child)


def to_tensordict(self):
    """A tensordict.TensorDict of the same tensors, batch sizes, names of dimensions and device."""
    import tensordict

    result = tensordict.TensorDict({}, batch_size=self.batch_size, device=self.device)
    if any(self.names):
        result.names = self.names
    for key, value in _ops.items(self, False, False):
        if not isinstance(key, str):
            raise ValueError(f"[{key}]: a tensordict has no positions")
        if isinstance(value, TensorDict):
            result.set(key, to_tensordict(value))
        elif isinstance(value, torch.Tensor):
            result.set(key, value)
        else:
            result.set_non_tensor(key, value)
    return result


def __reduce__(self):
    children = _ops.items(self, False, False)
    device = self.device
    return _rebuild, (
        tuple(self.batch_size),
        self.names,
        None if device is None else str(device),
        self.is_locked,
        children,
    )


def _rebuild(batch_size, names, device, locked, children):
    tree = TensorDict(batch_size=batch_size)
    for key, value in children:
        tree._set(key, value)
    if names:
        _ops.set_names(tree, names)
    if device is not None:
        tree = _ops.to(tree, torch.device(device), None, False)
    return lock_(tree) if locked else tree


# ---- torch's functions.


def _like(name):
    def function(input, **kwargs):
        per_leaf = getattr(torch, name)
        return _ops.apply(input, lambda leaf: per_leaf(leaf, **kwargs), (), "none", None, None)

    return function


def _full_like(input, fill_value, **kwargs):
    return _ops.apply(
        input, lambda leaf: torch.full_like(leaf, fill_value, **kwargs), (), "none", None, None
    )


def _torch_clone(input, *, memory_format=torch.preserve_format):
    return _ops.clone(input, True)


def _torch_flatten(input, start_dim=0, end_dim=-1):
    return flatten(input, start_dim, end_dim)


def _torch_view_of(method, name):
    def function(input, *args, **kwargs):
        return method(input, *args, **kwargs)

    function.__name__ = name
    return function


def _torch_stack(tensors, dim=0, *, out=None):
    if out is not None:
        raise TypeError("stack of trees takes no out")
    return _ops.stack(tensors, dim)


def _torch_cat(tensors, dim=0, *, out=None):
    if out is not None:
        raise TypeError("cat of trees takes no out")
    return _ops.cat(tensors, dim)


def _torch_split(tensor, split_size_or_sections, dim=0):
    return _ops.split(tensor, split_size_or_sections, dim)


_TORCH_FUNCTIONS = {
    torch.stack: _torch_stack,
    torch.cat: _torch_cat,
    torch.concat: _torch_cat,
    torch.concatenate: _torch_cat,
    torch.split: _torch_split,
    torch.chunk: chunk,
    torch.unbind: unbind,
    torch.squeeze: squeeze,
    torch.unsqueeze: unsqueeze,
    torch.permute: lambda input, dims: _ops.permute(input, dims),
    torch.transpose: transpose,
    torch.reshape: lambda input, shape: _ops.reshape(input, shape),
    torch.flatten: _torch_flatten,
    torch.unflatten: lambda input, dim, sizes: _ops.unflatten(input, dim, sizes),
    torch.clone: _torch_clone,
    torch.detach: detach,
    torch.allclose: allclose,
    torch.equal: equal,
    torch.full_like: _full_like,
    **{
        getattr(torch, name): _like(name)
        for name in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like")
    },
}


def __torch_function__(cls, func, types, args=(), kwargs=None):
    function = _TORCH_FUNCTIONS.get(func)
    if function is None:
        return NotImplemented
    return function(*args, **(kwargs or {}))


# ---- All of them on the class.

_METHODS = (
    __getitem__, __setitem__, __delitem__, __len__, __iter__, __bool__, __eq__, __ne__, __invert__, __reduce__,
    set, set_, set_at_, get, setdefault, pop, del_, rename_key_, keys, values, items, update, update_, copy_,
    select, exclude, flatten_keys, unflatten_keys, empty, apply, named_apply, apply_, split, chunk, unbind,
    view, reshape, permute, transpose, squeeze, unsqueeze, expand, flatten, unflatten, to, cpu, cuda, clone, copy,
    contiguous, detach, zero_, requires_grad_, lock_, unlock_, size, dim, numel, bytes, is_empty, allclose, equal,
    all, lerp, lerp_, addcmul_, addcdiv_, clamp, norm, total_norm, clip_norm_, clip_grad_norm_, state_dict,
    load_state_dict, consolidate, is_consolidated, memmap, to_tensordict,
)  # fmt: skip
_STATIC = (stack, cat, load_memmap)
_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "bool": torch.bool,
}
_COMPARISONS = {
    "__lt__": torch.lt, "__le__": torch.le, "__gt__": torch.gt, "__ge__": torch.ge,
    "__and__": torch.bitwise_and, "__or__": torch.bitwise_or, "__xor__": torch.bitwise_xor,
    "__rsub__": torch.rsub, "__rtruediv__": lambda leaf, other: other / leaf,
    "__rpow__": lambda leaf, other: other**leaf,
}  # fmt: skip


def attach() -> None:
    """Gives leafpack.TensorDict its methods."""

    def put(name, value):
        if hasattr(value, "__qualname__"):
            value.__qualname__ = f"TensorDict.{name}"
        setattr(TensorDict, name, value)

    for method in _METHODS:
        put(method.__name__, method)
    put("any", any_)
    any_.__name__ = "any"
    put("ndimension", dim)
    put("save", memmap)
    for method in _STATIC:
        setattr(TensorDict, method.__name__, staticmethod(method))
    TensorDict.load = staticmethod(load_memmap)
    TensorDict._from_tree = staticmethod(TensorDict.from_tensordict)
    TensorDict.from_tensordict = classmethod(from_tensordict)
    TensorDict.__torch_function__ = classmethod(__torch_function__)
    TensorDict.__hash__ = None
    for name, dtype in _DTYPES.items():
        put(name, _of_dtype(name, dtype))
    for name in ("add", "sub"):
        put(name, _scaled(name))
        put(name + "_", _scaled(name, inplace=True))
    for name in ("mul", "div", "pow", "maximum", "minimum"):
        put(name, _operation(name))
        if name not in ("maximum", "minimum"):
            put(name + "_", _operation(name, inplace=True))
    for sign, name in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow"}.items():
        put(f"__{sign}__", _operator(getattr(TensorDict, name)))
        put(f"__i{sign}__", _operator(getattr(TensorDict, name + "_")))
    put("__radd__", TensorDict.__add__)
    put("__rmul__", TensorDict.__mul__)
    for name, function in _COMPARISONS.items():
        put(name, _elementwise(name, function))
    for name in _ops.unary:
        put(name, _unary(name, False))
        put(name + "_", _unary(name, True))
    put("__neg__", TensorDict.neg)
    put("__abs__", TensorDict.abs)

    TensorDict.batch_size = property(
        TensorDict.batch_size.fget, _ops.set_batch_size, doc="The leading sizes of all tensors."
    )
    TensorDict.shape = TensorDict.batch_size
    TensorDict.batch_dims = property(dim)
    TensorDict.ndim = property(dim)
    TensorDict.names = property(_names, _ops.set_names, doc="Names of the batch dimensions.")
    TensorDict.device = property(_ops.device, doc="Where all tensors lie, if that was asked for.")
    TensorDict.is_locked = property(_ops.is_locked)
    TensorDict.requires_grad = property(lambda self: any(leaf.requires_grad for leaf in _tensors(self)))
    TensorDict.grad = property(grad, doc=grad.__doc__)
    TensorDict.data = property(_ops.detach)


def _names(self):
    return _ops.names(self) or [None] * len(self.batch_size)
