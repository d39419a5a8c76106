"""The batch dimensions of a LazyStack. All but repeat and repeat_interleave give views."""

from __future__ import annotations

import math

from leafpack._tree.common import sizes_of
from leafpack._tree.lazy.stack import LazyStack


def _dim(self, dim):
    if not -self.batch_dims <= dim < self.batch_dims:
        raise ValueError(f"dimension {dim} of a stack with {self.batch_dims} batch dimensions")
    return dim % self.batch_dims


def _inner(self, dim):
    """The place of another dimension than that of the stack in its trees."""
    return dim - (dim > self.stack_dim)


def unbind(self, dim=0):
    """One tree, or one stack, per position of a batch dimension."""
    dim = _dim(self, dim)
    if dim == self.stack_dim:
        return tuple(self.tensordicts)
    outer = self.stack_dim - (dim < self.stack_dim)
    rows = [tree.unbind(_inner(self, dim)) for tree in self.tensordicts]
    return tuple(self._like(parts, outer) for parts in zip(*rows))


def split(self, split_size, dim=0):
    """Parts of this size, or of these sizes."""
    dim = _dim(self, dim)
    size = self.batch_size[dim]
    if isinstance(split_size, int):
        if split_size < 1:
            raise ValueError(f"split: parts of {split_size}")
        split_size = [min(split_size, size - at) for at in range(0, size, split_size)]
    if sum(split_size) != size:
        raise ValueError(f"split: the sizes {list(split_size)} of {size} positions")
    parts, at = [], 0
    for count in split_size:
        parts.append(narrow(self, dim, at, count))
        at += count
    return tuple(parts)


def chunk(self, chunks, dim=0):
    """At most this many parts of equal size."""
    size = self.batch_size[_dim(self, dim)]
    return split(self, max(1, -(-size // chunks)), dim)


def tensor_split(self, indices_or_sections, dim=0):
    """This many parts whose sizes differ by one at most, or parts that begin at these positions."""
    dim = _dim(self, dim)
    size = self.batch_size[dim]
    if hasattr(indices_or_sections, "__index__"):
        count = int(indices_or_sections)
        if count < 1:
            raise ValueError(f"tensor_split: {count} parts")
        sizes = [size // count + (i < size % count) for i in range(count)]
        ends = [sum(sizes[: i + 1]) for i in range(count)]
    else:
        ends = [*(max(0, min(size, i + size if i < 0 else i)) for i in indices_or_sections), size]
    starts = [0, *ends[:-1]]
    return tuple(narrow(self, dim, a, max(0, b - a)) for a, b in zip(starts, ends))


def narrow(self, dim, start, length):
    """`length` positions of a batch dimension from `start` on."""
    dim = _dim(self, dim)
    size = self.batch_size[dim]
    start = start + size if start < 0 else start
    if not (0 <= start <= size and 0 <= length <= size - start):
        raise ValueError(f"narrow: positions {start} to {start + length} of {size}")
    return self[(*[slice(None)] * dim, slice(start, start + length))]


def unsqueeze(self, dim):
    """With a new batch dimension of size 1."""
    places = self.batch_dims + 1
    if not -places <= dim < places:
        raise ValueError(f"unsqueeze: dimension {dim} of {places}")
    dim %= places
    moved = dim <= self.stack_dim
    trees = [tree.unsqueeze(dim if moved else dim - 1) for tree in self.tensordicts]
    return self._like(trees, self.stack_dim + moved)


def squeeze(self, dim=None):
    """Without `dim` if its size is 1; without `dim` given, without all of size 1."""
    if dim is None:
        result = self
        for place in reversed(range(self.batch_dims)):
            if self.batch_size[place] == 1 and isinstance(result, LazyStack):
                result = squeeze(result, place)
            elif self.batch_size[place] == 1:
                result = result.squeeze(place)
        return result
    dim = _dim(self, dim)
    if self.batch_size[dim] != 1:
        return self
    if dim == self.stack_dim:
        return self.tensordicts[0]
    trees = [tree.squeeze(_inner(self, dim)) for tree in self.tensordicts]
    return self._like(trees, self.stack_dim - (dim < self.stack_dim))


def permute(self, *dims_list, dims=None):
    """Every batch dimension once, in a new order."""
    dims = sizes_of(dims_list, dims)
    order = [_dim(self, dim) for dim in dims]
    if sorted(order) != list(range(self.batch_dims)):
        raise ValueError(f"permute: {tuple(dims)} is no order of {self.batch_dims} dimensions")
    inner = [_inner(self, dim) for dim in order if dim != self.stack_dim]
    trees = [tree.permute(*inner) if inner else tree for tree in self.tensordicts]
    return self._like(trees, order.index(self.stack_dim))


def transpose(self, dim0, dim1):
    """Two batch dimensions in each other's place."""
    order = list(range(self.batch_dims))
    dim0, dim1 = _dim(self, dim0), _dim(self, dim1)
    order[dim0], order[dim1] = dim1, dim0
    return permute(self, *order)


def movedim(self, source, destination):
    """Batch dimensions at other places; the others keep their order."""
    source = [_dim(self, d) for d in ([source] if isinstance(source, int) else source)]
    destination = [_dim(self, d) for d in ([destination] if isinstance(destination, int) else destination)]
    if len(source) != len(destination) or len({*source}) != len(source) or len({*destination}) != len(destination):
        raise ValueError(f"movedim: {source} to {destination}")
    order = [dim for dim in range(self.batch_dims) if dim not in source]
    for place, dim in sorted(zip(destination, source)):
        order.insert(place, dim)
    return permute(self, *order)


def reshape(self, *shape, size=None):
    """The batch in another shape; trees are taken apart into elements where their dimension does not stay."""
    return _reshaped(self, sizes_of(shape, size), "reshape")


def view(self, *shape, size=None, batch_size=None):
    """The batch in another shape; views."""
    return _reshaped(self, sizes_of(shape, size, batch_size), "view")


def _reshaped(self, shape, name):
    shape, count = list(shape), self.batch_size.numel()
    if shape.count(-1) == 1:
        rest = math.prod(size for size in shape if size != -1)
        if rest == 0 or count % rest:
            raise ValueError(f"{name}: {list(self.batch_size)} cannot become {shape}")
        shape[shape.index(-1)] = count // rest
    if any(size < 0 for size in shape) or math.prod(shape) != count:
        raise ValueError(f"{name}: {list(self.batch_size)} cannot become {shape}")
    if tuple(shape) == tuple(self.batch_size):
        return self
    before = math.prod(self.batch_size[: self.stack_dim])
    for place, size in enumerate(shape):
        if size == len(self.tensordicts) and math.prod(shape[:place]) == before:
            inner = (*shape[:place], *shape[place + 1 :])
            return self._like([getattr(tree, name)(*inner) for tree in self.tensordicts], place)
    if not shape or count == 0:
        return getattr(self.contiguous(), name)(*shape)
    return _nested(iter(_elements(self)), shape)


def _elements(tree):
    """Trees without batch dimensions, the last dimension running fastest."""
    if not tree.batch_size:
        return [tree]
    return [element for part in tree.unbind(0) for element in _elements(part)]


def _nested(elements, shape):
    first, *rest = shape
    return LazyStack(*(_nested(elements, rest) if rest else next(elements) for _ in range(first)))


def flatten(self, start_dim=0, end_dim=-1):
    """Batch dimensions merged into one."""
    start, end = _dim(self, start_dim or 0), _dim(self, -1 if end_dim is None else end_dim)
    if end < start:
        raise ValueError(f"flatten: from {start} to {end}")
    sizes = self.batch_size
    merged = math.prod(sizes[start : end + 1])
    return _reshaped(self, (*sizes[:start], merged, *sizes[end + 1 :]), "reshape")


def unflatten(self, dim, unflattened_size):
    """A batch dimension split into several."""
    dim, parts = _dim(self, dim), list(unflattened_size)
    size = self.batch_size[dim]
    if parts.count(-1) == 1 and (rest := -math.prod(parts)) and size % rest == 0:
        parts[parts.index(-1)] = size // rest
    if any(part < 0 for part in parts) or math.prod(parts) != size:
        raise ValueError(f"unflatten: {size} positions cannot become {parts}")
    return _reshaped(self, (*self.batch_size[:dim], *parts, *self.batch_size[dim + 1 :]), "reshape")


def expand(self, *shape):
    """The batch broadcast to this shape; -1 keeps a size."""
    shape = list(sizes_of(shape))
    place = len(shape) - self.batch_dims + self.stack_dim
    if len(shape) < self.batch_dims:
        raise ValueError(f"expand: {list(self.batch_size)} cannot become {shape}")
    count = shape.pop(place)
    trees = self.tensordicts * count if len(self.tensordicts) == 1 and count > 0 else self.tensordicts
    if count not in (-1, len(trees)):
        raise ValueError(f"expand: a stack of {len(trees)} cannot become one of {count}")
    return self._like([tree.expand(*shape) if shape else tree for tree in trees], place)


def expand_as(self, other):
    """expand to the batch size of another tree, or the shape of a tensor."""
    return expand(self, *other.shape)


def broadcast_to(self, shape):
    """expand under torch's name."""
    return expand(self, *shape)


def repeat(self, *repeats):
    """The batch this many times along each of its dimensions; copies."""
    counts = sizes_of(repeats)
    if len(counts) != self.batch_dims or any(count < 0 for count in counts):
        raise ValueError(f"repeat: {list(counts)} for {self.batch_dims} batch dimensions")
    counts = list(counts)
    own = counts.pop(self.stack_dim)
    if own == 0:
        return self.contiguous().repeat(*repeats)
    rows = [[tree.repeat(*counts) if counts else tree.clone() for tree in self.tensordicts] for _ in range(own)]
    return self._like([tree for row in rows for tree in row])


def repeat_interleave(self, repeats, dim=None, *, output_size=None):
    """Each position of a batch dimension this many times in a row; copies."""
    if dim is None or not hasattr(repeats, "__index__") or int(repeats) < 1:
        return self.contiguous().repeat_interleave(repeats, dim, output_size=output_size)
    dim = _dim(self, dim)
    if dim == self.stack_dim:
        return self._like([tree.clone() for tree in self.tensordicts for _ in range(int(repeats))])
    return self._like([t.repeat_interleave(repeats, _inner(self, dim)) for t in self.tensordicts])


METHODS = {
    function.__name__: function
    for function in (
        _dim, unbind, split, chunk, tensor_split, narrow, unsqueeze, squeeze, permute, transpose, movedim, reshape, view,
        flatten, unflatten, expand, expand_as, broadcast_to, repeat, repeat_interleave,
    )
}  # fmt: skip
METHODS |= {"swapaxes": transpose, "swapdims": transpose, "moveaxis": movedim}
