"""Indexing the batch dimensions of a LazyStack."""

from __future__ import annotations

import torch

from leafpack._tree.common import NO_VALUE, TensorDict, is_key
from leafpack._tree.interop import as_tree
from leafpack._tree.lazy.stack import LazyStack


def __getitem__(self, key):
    if is_key(key):
        return self.get(key, NO_VALUE)
    before, here, after = _split(self, key)
    if _is_mask(here) and here.dim() > 1:
        return _by_mask(self, before, here, after)
    inner = (*before, *after)
    dim = sum(map(_made, before))
    trees = self.tensordicts
    if isinstance(here, slice):
        chosen = trees[here]
    elif not isinstance(here, torch.Tensor):
        return trees[_place(self, here)][inner] if inner else trees[_place(self, here)]
    elif here.dim() > 1:
        # One stack for each row of the positions.
        return self._like([self[(*before, row, *after)] for row in here], dim)
    else:
        chosen = [trees[i] for i in _positions(self, here)]
    if not chosen:
        empty = self.contiguous() if _same_layout(self) else TensorDict(batch_size=self.batch_size)
        return empty[(*before, here, *after)]
    if inner:
        chosen = [tree[inner] for tree in chosen]
    return self._like(chosen, dim)


def _by_mask(self, before, mask, after):
    """A mask over several dimensions, that of the stack among them: one tree for each place where it is true."""
    first = len(before)
    if any(not isinstance(item, slice) or item != slice(None) for item in before):
        raise IndexError("in front of a mask over the dimension of a stack stand whole dimensions")
    sizes = tuple(self.batch_size[first : first + mask.dim()])
    if tuple(mask.shape) != sizes:
        raise IndexError(f"a mask of the shape {list(mask.shape)} for the sizes {list(sizes)}")
    merged = self.flatten(first, first + mask.dim() - 1)
    return merged[(*before, mask.flatten(), *after)]


def _is_mask(item):
    return isinstance(item, torch.Tensor) and item.dtype is torch.bool


def _used(item):
    """How many dimensions an item of an index takes."""
    return 0 if item is None else item.dim() if _is_mask(item) else 1


def _made(item):
    """How many dimensions an item of an index gives."""
    if item is None or isinstance(item, slice) or _is_mask(item):
        return 1
    return item.dim() if isinstance(item, torch.Tensor) else 0


def _plain(item):
    """An item of an index as a number, a slice, None, Ellipsis, or a tensor with dimensions."""
    if isinstance(item, bool):
        raise TypeError("True and False are no index: None makes a dimension of size 1")
    if not isinstance(item, torch.Tensor) and hasattr(item, "__index__"):
        try:
            return item.__index__()
        except TypeError:  # an array says that it can be a number, whatever its shape
            pass
    if not isinstance(item, torch.Tensor) and (
        isinstance(item, (list, range, tuple)) or hasattr(item, "__array__")
    ):
        if hasattr(item, "strides"):
            item = item.copy()  # torch takes no negative strides
        item = torch.as_tensor(list(item) if isinstance(item, range) else item)
        if item.numel() == 0 and item.dtype not in (torch.bool, torch.uint8):
            item = item.long()
    if isinstance(item, torch.Tensor):
        if item.dtype is torch.uint8:  # as in torch, bool's older form
            item = item.bool()
        if item.dim() == 0 and item.dtype is torch.bool:
            raise IndexError("a mask without dimensions cannot index; None makes a new dimension")
        if item.dim() == 0:
            return int(item)
    return item


def _split(self, key):
    """The parts of an index before, at, and behind the dimension of the stack."""
    items = [_plain(item) for item in (key if isinstance(key, tuple) else (key,))]
    used = sum(_used(item) for item in items if item is not Ellipsis)
    if used > self.batch_dims:
        raise IndexError(f"{used} indices for {self.batch_dims} batch dimensions")
    if sum(isinstance(item, torch.Tensor) for item in items) > 1:
        raise IndexError("an index of a stack has one tensor, list or mask at most")
    place = next((i for i, item in enumerate(items) if item is Ellipsis), None)
    if place is not None:
        items[place : place + 1] = [slice(None)] * (self.batch_dims - used)
    before, rest = [], items
    seen = 0
    while rest and (seen < self.stack_dim or rest[0] is None):
        before.append(rest.pop(0))
        seen += _used(before[-1])
    if seen > self.stack_dim:  # a mask that takes the dimension of the stack too
        return tuple(before[:-1]), before[-1], tuple(rest)
    before += [slice(None)] * (self.stack_dim - seen)
    return tuple(before), rest.pop(0) if rest else slice(None), tuple(rest)


def _place(self, item):
    count = len(self.tensordicts)
    if not hasattr(item, "__index__"):
        raise TypeError(f"no index: {type(item).__name__}")
    place = item.__index__()
    if not -count <= place < count:
        raise IndexError(f"position {place} of a stack of {count}")
    return place


def _positions(self, item):
    """The places of trees that a tensor of one dimension, numbers or a mask, chooses."""
    if item.dtype is torch.bool:
        if len(item) != len(self.tensordicts):
            raise IndexError(f"a mask of {len(item)} for a stack of {len(self.tensordicts)}")
        return item.nonzero().flatten().tolist()
    return [_place(self, place) for place in item.tolist()]


def _same_layout(self):
    trees = list(self._dense_trees())
    return all(tree.same_layout(trees[0]) for tree in trees)


def __setitem__(self, key, value):
    if is_key(key):
        self.set(key, value)
        return
    before, here, after = _split(self, key)
    inner = (*before, *after)
    if _is_mask(here) and here.dim() > 1:
        part = self[key]  # its trees are views of those of this stack
        for tree, piece in zip(getattr(part, "tensordicts", ()), _pieces(part, value)):
            tree[(Ellipsis,)] = piece
    elif isinstance(here, torch.Tensor) and here.dim() > 1:
        raise IndexError("positions of a stack that are written have one dimension")
    elif isinstance(here, (slice, torch.Tensor)):
        trees = self.tensordicts
        chosen = (
            trees[here] if isinstance(here, slice) else [trees[i] for i in _positions(self, here)]
        )
        if chosen:
            part = self._like([tree[inner] for tree in chosen] if inner else chosen, sum(map(_made, before)))
            for tree, piece in zip(chosen, _pieces(part, value)):
                tree[inner or (Ellipsis,)] = piece
    else:
        tree = self.tensordicts[_place(self, here)]
        if not isinstance(value, (bool, int, float, complex, torch.Tensor)):
            value = as_tree(value, TensorDict(batch_size=(tree[inner] if inner else tree).batch_size))
        tree[inner or (Ellipsis,)] = value


def _pieces(part, value):
    """What of `value` goes to each tree of `part`."""
    if not isinstance(part, LazyStack):
        return []  # no position was chosen
    if isinstance(value, (bool, int, float, complex)):
        return [value] * len(part.tensordicts)
    if isinstance(value, torch.Tensor):
        if value.dim() > 0:
            raise ValueError("an index takes a tree or a number: a tensor does not say which leaf it is for")
        return [value.item()] * len(part.tensordicts)
    return part._trees_of(value)


def __iter__(self):
    return iter(self.unbind(0))


METHODS = {
    function.__name__: function for function in (__getitem__, __setitem__, __iter__)
}
