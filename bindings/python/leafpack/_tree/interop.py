"""Trees from and to other kinds of trees, and their pickled form."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler

import torch

from leafpack._tree.common import TensorDict, ops


def as_tree(value, like, what="value"):
    """`value` as a leafpack.TensorDict; nodes of a dict get the batch size of `like`."""
    if isinstance(value, TensorDict):
        return value
    if hasattr(value, "batch_size"):
        return from_tensordict(TensorDict, value)
    if isinstance(value, Mapping):
        return TensorDict(dict(value), like.batch_size)
    raise TypeError(f"{what} must be a tree of tensors, not {type(value).__name__}")


def from_tensordict(cls, source):
    """The leaves of a tensordict.TensorDict, not copied, with batch sizes, names of dimensions and device."""
    tree = cls._from_tree(source)
    _take_nodes(tree, source)
    device = getattr(source, "device", None)
    if device is not None and type(source).__name__ == "TensorDict":
        tree = ops.to(tree, device, None, False)
    return tree


def _take_nodes(tree, source):
    import tensordict

    if type(source) is not tensordict.TensorDict:
        return
    if any(name is not None for name in source.names):
        ops.set_names(tree, source.names)
    for key in source.keys():
        child = source._get_str(key, None)
        if type(child) is tensordict.LazyStackedTensorDict:
            tree._set(key, _positions_of(child))
        if type(child) is not tensordict.TensorDict:
            continue
        if key not in tree:
            tree._set(key, TensorDict(batch_size=child.batch_size))
        node = tree._get(key)
        if node.batch_size != child.batch_size:
            ops.set_batch_size(node, child.batch_size)
        _take_nodes(node, child)


def _positions_of(stack):
    """A node with the trees of tensordict's stack at the positions 0, 1, ..., as LazyStack makes it."""
    inner = [part.stack_dim for part in stack.tensordicts if type(part) is type(stack)]
    dim = stack.stack_dim if min(inner, default=stack.stack_dim) >= stack.stack_dim else 0
    node = TensorDict(batch_size=stack.batch_size[:dim])
    for place, part in enumerate(stack.tensordicts):
        node._set(place, _positions_of(part) if type(part) is type(stack) else from_tensordict(TensorDict, part))
    return node


def to_tensordict(self):
    """A tensordict.TensorDict of the same tensors, batch sizes, names of dimensions and device."""
    import tensordict

    result = tensordict.TensorDict({}, batch_size=self.batch_size, device=self.device)
    if any(self.names):
        result.names = self.names
    for key, value in ops.items(self, False, False):
        if not isinstance(key, str):
            raise ValueError(f"[{key}]: a tensordict has no positions")
        if isinstance(value, TensorDict):
            stack = _stack_of(value, self.batch_size)
            result.set(key, to_tensordict(value) if stack is None else stack)
        elif isinstance(value, torch.Tensor):
            result.set(key, value)
        else:
            result.set_non_tensor(key, value)
    return result


def _stack_of(node, batch_size):
    """tensordict's stack of the trees, or of the plain values, at the positions of a node; None if it is no stack."""
    import tensordict

    items = ops.items(node, False, False)
    if not items or [key for key, _ in items] != list(range(len(items))):
        return None
    values = [value for _, value in items]
    if batch_size and len(values) == batch_size[0]:
        rest = batch_size[1:]
        plain = [_stack_of(v, rest) if isinstance(v, TensorDict) else _plain(v, rest) for v in values]
        if all(isinstance(v, (tensordict.NonTensorData, tensordict.NonTensorStack)) for v in plain):
            return tensordict.NonTensorStack(*plain, stack_dim=0)
    if not all(isinstance(value, TensorDict) for value in values):
        return None
    parts = [_stack_of(value, ()) for value in values]
    parts = [to_tensordict(value) if part is None else part for value, part in zip(values, parts)]
    if any(part.batch_size != parts[0].batch_size for part in parts):
        return None
    return tensordict.LazyStackedTensorDict(*parts, stack_dim=len(node.batch_size))


def _plain(value, batch_size):
    import tensordict

    if isinstance(value, torch.Tensor) or value is None or batch_size:
        return None
    return tensordict.NonTensorData(value)


def _parts_of(self):
    device = self.device
    return (
        tuple(self.batch_size),
        self.names,
        None if device is None else str(device),
        self.is_locked,
        ops.items(self, False, False),
    )


def __reduce__(self):
    return _rebuild, _parts_of(dtypes_apart(self))


def _reduce_shared(self):
    """For processes, which share the memory of the tensors."""
    return _rebuild, _parts_of(self)


def __deepcopy__(self, memo):
    return _rebuild(*copy.deepcopy(_parts_of(self), memo))


def dtypes_apart(tree):
    """`tree`, or one in which tensors of several dtypes in one storage are copies in a storage for each dtype.

    torch.save takes no storage with two dtypes. Tensors of one dtype that overlap still do.
    """
    storages = {}
    for path, leaf in ops.items(tree, True, True):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_meta:
            address = leaf.untyped_storage().data_ptr()
            if address:
                storages.setdefault(address, {}).setdefault(leaf.dtype, []).append((path, leaf))
    mixed = [group for kinds in storages.values() if len(kinds) > 1 for group in kinds.values()]
    if not mixed:
        return tree
    result = ops.clone(tree, False)
    for group in mixed:
        begin = min(leaf.storage_offset() for _, leaf in group)
        end = max(leaf.storage_offset() + _extent(leaf) for _, leaf in group)
        with torch.no_grad():
            first = group[0][1].detach()
            run = first.as_strided((max(end - begin, 0),), (1,), begin).clone()
            for path, leaf in group:
                part = run.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset() - begin)
                part = part.conj() if leaf.is_conj() else part
                part = torch._neg_view(part) if leaf.is_neg() else part
                if isinstance(leaf, torch.nn.Parameter):
                    part = torch.nn.Parameter(part, leaf.requires_grad)
                else:
                    part.requires_grad_(leaf.requires_grad)
                result._set(path, part)
    for path, node in ops.items(tree, True, False):
        if isinstance(node, TensorDict) and node.is_locked:
            ops.lock(result._get(path))
    if tree.is_locked:
        ops.lock(result)
    return result


def _extent(leaf):
    """How many elements of the storage lie from the first to the last of the tensor."""
    if leaf.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride()))


def _rebuild(batch_size, names, device, locked, children):
    tree = TensorDict(batch_size=batch_size)
    for key, value in children:
        if type(value) is list:  # one value, not a node of positions
            ops.set_plain(tree, key, value)
        else:
            tree._set(key, value)
    if names:
        ops.set_names(tree, names)
    if device is not None:
        tree = ops.to(tree, torch.device(device), None, False)
    if locked:
        ops.lock(tree)
    return tree


METHODS = {
    "from_tensordict": classmethod(from_tensordict),
    "to_tensordict": to_tensordict,
    "__reduce__": __reduce__,
    "__deepcopy__": __deepcopy__,
}
ForkingPickler.register(TensorDict, _reduce_shared)
