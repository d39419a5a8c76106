"""Parts, repetitions and new orders of batch positions, and choices by a mask.

Most are an index, which keeps batch sizes of nodes, names and autograd.
"""

from __future__ import annotations

import torch

from leafpack._tree.common import TensorDict, mapped, ops, sizes_of, tensors_of
from leafpack._tree.interop import as_tree


def _place(tree, dim, name):
    count = len(tree.batch_size)
    if not -count <= dim < count:
        raise IndexError(f"{name}: dimension {dim} of a tree with {count} batch dimensions")
    return dim % count


def _at(tree, dim, positions):
    """The tree of these positions of a batch dimension; a slice gives views."""
    return ops.index(tree, (*[slice(None)] * dim, positions))


def narrow(self, dim, start, length):
    """`length` positions of a batch dimension from `start` on; views."""
    place = _place(self, dim, "narrow")
    size = self.batch_size[place]
    start = int(start)
    first = start + size if start < 0 else start
    if not 0 <= first <= size or length < 0 or first + length > size:
        raise IndexError(f"narrow: {length} positions from {start} on, of {size}")
    return _at(self, place, slice(first, first + length))


def tensor_split(self, indices_or_sections, dim=0):
    """Parts of about equal size, or that begin at these positions; views."""
    place = _place(self, dim, "tensor_split")
    size = self.batch_size[place]
    if isinstance(indices_or_sections, torch.Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        if count < 1:
            raise ValueError(f"tensor_split: {count} parts")
        base, longer = divmod(size, count)
        ends = [(i + 1) * base + min(i + 1, longer) for i in range(count)]
    else:
        ends = [
            min(max(end + size if end < 0 else end, 0), size) for end in indices_or_sections
        ] + [size]
    starts = [0, *ends[:-1]]
    return tuple(
        _at(self, place, slice(start, max(start, end))) for start, end in zip(starts, ends)
    )


def repeat(self, *repeats):
    """The batch that many times along each of its dimensions; new ones come in front."""
    repeats = sizes_of(repeats)
    new = len(repeats) - len(self.batch_size)
    if new < 0 or any(count < 0 for count in repeats):
        raise ValueError(
            f"repeat: {tuple(repeats)} is not one count for each of {len(self.batch_size)} dimensions"
        )
    result = self
    for _ in range(new):
        result = ops.unsqueeze(result, 0)
    for dim, count in enumerate(repeats):
        result = _at(result, dim, torch.arange(result.batch_size[dim]).repeat(count))
    return result if repeats else ops.clone(self, True)


def tile(self, dims):
    """repeat; dimensions that `dims` does not have are taken once."""
    dims = sizes_of(dims) if isinstance(dims, tuple) else sizes_of((dims,))
    return repeat(self, *[1] * (len(self.batch_size) - len(dims)), *dims)


def repeat_interleave(self, repeats, dim=None, *, output_size=None):
    """Each position of a batch dimension that many times, one after the other; without `dim` of the flattened batch."""
    if not self.batch_size:  # as torch does with a single number
        self = ops.unsqueeze(self, 0)
    if dim is None:
        self, dim = ops.reshape(self, (-1,)) if len(self.batch_size) > 1 else self, 0
    place = _place(self, dim, "repeat_interleave")
    positions = torch.arange(self.batch_size[place])
    if isinstance(repeats, torch.Tensor):
        repeats = repeats.to(positions.device)
    return _at(self, place, positions.repeat_interleave(repeats, output_size=output_size))


def roll(self, shifts, dims=None):
    """Positions of batch dimensions moved round; without `dims` of the flattened batch."""
    if not self.batch_size:
        raise ValueError("roll: the tree has no batch dimension")
    if dims is None:
        size = self.batch_size
        if len(size) > 1:
            return ops.reshape(roll(ops.reshape(self, (-1,)), shifts, 0), size)
        dims = 0
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    if len(shifts) != len(dims):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(dims)} dimensions")
    result = self
    for shift, dim in zip(shifts, dims):
        place = _place(self, dim, "roll")
        result = _at(result, place, torch.arange(self.batch_size[place]).roll(shift))
    return result


def flip(self, dims):
    """Batch dimensions the other way round; copies."""
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    places = [_place(self, dim, "flip") for dim in dims]
    if len(frozenset(places)) != len(places):
        raise ValueError(f"flip: a dimension of {tuple(dims)} comes twice")
    result = self
    for place in places:
        result = _at(result, place, torch.arange(self.batch_size[place]).flip(0))
    return result


def fliplr(self):
    """flip of the second batch dimension."""
    return flip(self, 1)


def flipud(self):
    """flip of the first batch dimension."""
    return flip(self, 0)


def rot90(self, k=1, dims=(0, 1)):
    """Turned `k` times by 90 degrees in the plane of two batch dimensions."""
    first, second = (_place(self, dim, "rot90") for dim in dims)
    if first == second:
        raise ValueError(f"rot90: {tuple(dims)} are one dimension")
    k %= 4
    if k == 0:
        return ops.clone(self, False)
    if k == 2:
        return flip(self, (first, second))
    if k == 1:
        return ops.transpose(flip(self, second), first, second)
    return flip(ops.transpose(self, first, second), second)


def movedim(self, source, destination):
    """Batch dimensions at other places."""
    many = isinstance(source, (tuple, list))
    sources = [_place(self, d, "movedim") for d in (source if many else (source,))]
    destinations = [_place(self, d, "movedim") for d in (destination if many else (destination,))]
    if len(sources) != len(destinations):
        raise ValueError(f"movedim: {len(sources)} dimensions to {len(destinations)} places")
    order = [d for d in range(len(self.batch_size)) if d not in sources]
    for place, dim in sorted(zip(destinations, sources)):
        order.insert(place, dim)
    return ops.permute(self, tuple(order))


def broadcast_to(self, shape):
    """expand."""
    return ops.expand(self, tuple(shape))


def expand_as(self, other):
    """expand to the batch size of a tree, or the shape of a tensor."""
    return ops.expand(self, tuple(other.shape))


def _at_least(count):
    def method(self):
        result = self
        while len(result.batch_size) < count:
            result = ops.unsqueeze(result, 0)
        return result

    method.__name__ = f"atleast_{count}d"
    method.__doc__ = f"With batch dimensions of size 1 in front, so that there are {count}."
    return method


def gather(self, dim, index, out=None):
    """torch.gather along a batch dimension; `index` has as many dimensions as the batch."""
    place = _place(self, dim, "gather")
    if index.dim() != len(self.batch_size):
        raise ValueError(
            f"gather: the index has {index.dim()} dimensions, the batch {len(self.batch_size)}"
        )
    grid = torch.meshgrid(*[torch.arange(n) for n in index.shape], indexing="ij")
    result = ops.index(self, tuple(index if i == place else g for i, g in enumerate(grid)))
    return _into_out(result, out)


def _into_out(result, out):
    if out is None:
        return result
    ops.update_in_place(out, result, False)
    return out


def masked_select(self, mask):
    """The positions of the batch where `mask` is true."""
    if tuple(mask.shape) != tuple(self.batch_size):
        mask = mask.expand(*mask.shape[: mask.dim() - len(self.batch_size)], *self.batch_size)
    return ops.index(self, mask)


def masked_fill_(self, mask, value):
    """Writes a number where `mask` is true."""
    if mask.dim() > 0:
        ops.fill_index(self, mask, value)
    elif mask:
        ops.fill_index(self, ..., value)
    return self


def masked_fill(self, mask, value):
    """A copy with a number where `mask` is true."""
    return masked_fill_(ops.clone(self, True), mask, value)


def where(self, condition, other, *, out=None):
    """This tree where `condition`, of the batch's shape, is true; elsewhere the other tree or number."""
    if not isinstance(other, (torch.Tensor, int, float, complex)):
        other = as_tree(other, self, "other")

    def choose(leaf, else_):
        fitting = condition.reshape(condition.shape + (1,) * (leaf.dim() - condition.dim()))
        return torch.where(fitting, leaf, else_)

    if isinstance(other, TensorDict):
        result = ops.apply(self, choose, (other,), "none", None, None)
    else:
        result = ops.apply(self, lambda leaf: choose(leaf, other), (), "none", None, None)
    return _into_out(result, out)


def pad(self, pad_size, value=0.0):
    """Positions with `value` before and behind: pad_size has two numbers for each batch dimension, the first first."""
    if len(pad_size) % 2 or len(pad_size) > 2 * len(self.batch_size):
        raise ValueError(f"pad: {list(pad_size)} is not two numbers for each batch dimension")
    pairs = [tuple(pad_size[i : i + 2]) for i in range(0, len(pad_size), 2)]

    def larger(size):
        return [n + sum(pairs[i]) if i < len(pairs) else n for i, n in enumerate(size)]

    def padded(leaf, size):
        behind = [0] * (2 * (leaf.dim() - len(pairs)))
        for before, after in reversed(pairs):
            behind += [before, after]
        return torch.nn.functional.pad(leaf, behind, value=value)

    return mapped(self, padded, larger, names=True)


def _new(make):
    """new_zeros and its kin: tensors of new batch sizes."""

    def method(self, size, options):
        size = tuple(size)
        count = len(self.batch_size)
        return mapped(
            self,
            lambda leaf, _: make(leaf, size + tuple(leaf.shape[count:]), **options),
            lambda batch: size + tuple(batch[count:]),
        )

    return method


_NEW_FULL = _new(
    lambda leaf, size, fill_value, **options: leaf.new_full(size, fill_value, **options)
)


def new_full(self, size, fill_value, *, dtype=None, device=None, requires_grad=False):
    """Tensors full of `fill_value` with this size in place of the batch size."""
    options = {
        "fill_value": fill_value,
        "dtype": dtype,
        "device": device,
        "requires_grad": requires_grad,
    }
    return _NEW_FULL(self, size if isinstance(size, (tuple, list)) else (size,), options)


def _new_of(name):
    make = _new(lambda leaf, size, **options: getattr(leaf, name)(size, **options))

    def method(self, *size, dtype=None, device=None, requires_grad=False):
        options = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
        return make(self, sizes_of(size), options)

    method.__name__ = name
    method.__doc__ = f"{name} of every tensor, with this size in place of the batch size."
    return method


def _of_one(name, combine):
    """stack_from_tensordict and cat_from_tensordict."""

    def method(self, dim=0, *, sorted=None, out=None):
        keys = sorted if isinstance(sorted, (list, tuple)) else None
        leaves = tensors_of(self) if keys is None else [self._get(key) for key in keys]
        return combine(leaves, dim, out=out)

    method.__name__ = name
    method.__doc__ = (
        "All tensors of the tree, in canonical order or that of `sorted`, in one tensor."
    )
    return method


def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False):
    """A tree of leaf.new_tensor(data) for each tensor: `data` is copied, and its sizes are the batch size.

    `data` may be a tree of these keys: then each tensor is made of the one that stands there.
    """
    tree = hasattr(data, "batch_size")
    source = as_tree(data, self) if tree else torch.as_tensor(data)
    result = TensorDict(batch_size=source.batch_size if tree else source.shape)
    for key, value in ops.items(self, True, True):
        if isinstance(value, torch.Tensor):
            origin = source._get(key).detach() if tree else source.detach()
            value = origin.to(device or origin.device, dtype or value.dtype, copy=True).requires_grad_(requires_grad)
        result._set(key, value)
    return result


METHODS = {
    function.__name__: function
    for function in (
        narrow, tensor_split, repeat, tile, repeat_interleave, roll, flip, fliplr, flipud, rot90, movedim, broadcast_to,
        expand_as, gather, masked_select, masked_fill_, masked_fill, where, pad, new_full, new_tensor,
        _at_least(1), _at_least(2), _at_least(3), _new_of("new_zeros"), _new_of("new_ones"), _new_of("new_empty"),
        _of_one("stack_from_tensordict", torch.stack), _of_one("cat_from_tensordict", torch.cat),
    )
}  # fmt: skip
METHODS["moveaxis"] = movedim
