"""torch's functions that take trees."""

from __future__ import annotations

import torch

from leafpack._tree.common import ops
from leafpack._tree.compare import allclose, equal
from leafpack._tree.leaves import detach
from leafpack._tree.shapes import chunk, flatten, squeeze, transpose, unbind, unsqueeze


def _like(name):
    def function(input, **kwargs):
        per_leaf = getattr(torch, name)
        return ops.apply(input, lambda leaf: per_leaf(leaf, **kwargs), (), "none", None, None)

    return function


def _full_like(input, fill_value, **kwargs):
    return ops.apply(
        input, lambda leaf: torch.full_like(leaf, fill_value, **kwargs), (), "none", None, None
    )


def _torch_clone(input, *, memory_format=torch.preserve_format):
    return ops.clone(input, True)


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
    return ops.stack(tensors, dim)


def _torch_cat(tensors, dim=0, *, out=None):
    if out is not None:
        raise TypeError("cat of trees takes no out")
    return ops.cat(tensors, dim)


def _torch_split(tensor, split_size_or_sections, dim=0):
    return ops.split(tensor, split_size_or_sections, dim)


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
    torch.permute: lambda input, dims: ops.permute(input, dims),
    torch.transpose: transpose,
    torch.reshape: lambda input, shape: ops.reshape(input, shape),
    torch.flatten: _torch_flatten,
    torch.unflatten: lambda input, dim, sizes: ops.unflatten(input, dim, sizes),
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


METHODS = {"__torch_function__": classmethod(__torch_function__)}
