"""torch's functions that take trees."""

from __future__ import annotations

import torch

from leafpack._tree import rearrange, shapes
from leafpack._tree.common import TensorDict, ops, tensors_of
from leafpack._tree.interop import as_tree


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
    return shapes.flatten(input, start_dim, end_dim)


def _torch_split(tensor, split_size_or_sections, dim=0):
    return ops.split(tensor, split_size_or_sections, dim)


def _loss(function):
    def loss(input, target, *args, **kwargs):
        target = as_tree(target, input, "target")
        return _pairwise(lambda a, b: function(a, b, *args, **kwargs), input, target)

    return loss


def _pairwise(function, a, b):
    """A tree without batch dimensions of function(leaf, leaf); nodes keep theirs if `function` keeps sizes."""
    try:
        return ops.apply(a, function, (b,), "none", None, None)
    except ValueError:
        return ops.apply(a, function, (b,), "none", (), None)


def _where(condition, input, other, *, out=None):
    if not isinstance(input, TensorDict):  # a number or a tensor in front of the tree
        return rearrange.where(other, ~condition, input, out=out)
    return rearrange.where(input, condition, other, out=out)


def _grad(outputs, inputs, grad_outputs=None, *args, **kwargs):
    """torch.autograd.grad, in which trees stand for their tensors; of one tree the gradients are a tree."""
    inputs = (inputs,) if isinstance(inputs, (torch.Tensor, TensorDict)) else tuple(inputs)
    if grad_outputs is not None:
        grad_outputs = _listed(grad_outputs)
    given = torch.autograd.grad(_listed(outputs), _listed(inputs), grad_outputs, *args, **kwargs)
    rest = list(reversed(given))
    result = tuple(
        (
            ops.apply(value, lambda leaf: rest.pop(), (), "none", None, None)
            if isinstance(value, TensorDict)
            else rest.pop()
        )
        for value in inputs
    )
    return result[0] if len(result) == 1 and isinstance(inputs[0], TensorDict) else result


def _listed(values):
    if isinstance(values, (torch.Tensor, TensorDict)):
        values = (values,)
    leaves = []
    for value in values:
        leaves += tensors_of(value) if isinstance(value, TensorDict) else [value]
    return leaves


# The method of the same name, with the tree as its first argument.
_AS_METHODS = """
    abs acos add addcdiv addcmul amax amin asin atan atleast_1d atleast_2d atleast_3d bitwise_and broadcast_to ceil
    chunk clamp clamp_max clamp_min cos cosh cummax cummin detach div equal allclose erf erfc exp expm1 flip fliplr
    flipud floor frac gather isfinite isnan isneginf isposinf isreal lerp lgamma log log10 log1p log2 logical_and
    logsumexp masked_select max maximum mean min minimum moveaxis movedim mul nanmean nansum narrow neg permute pow
    prod quantile reciprocal repeat_interleave reshape roll rot90 round rsqrt rsub sigmoid sign sin sinh softmax sqrt
    squeeze std sub sum swapaxes swapdims tan tanh tensor_split tile transpose trunc unbind unflatten unsqueeze var
""".split()
_IN_PLACE = """
    abs acos asin atan ceil clamp_max clamp_min cos cosh erf erfc exp expm1 floor frac log log10 log1p log2 neg
    reciprocal round sigmoid sin sinh sqrt tan tanh trunc
""".split()


def _method(name):
    def function(input, *args, **kwargs):
        return getattr(input, name)(*args, **kwargs)

    return function


METHODS_BY_FUNCTION = {
    **{getattr(torch, name): name for name in _AS_METHODS},
    **{getattr(torch, name + "_"): name + "_" for name in _IN_PLACE},
    torch.clone: "clone",
    torch.split: "split",
    torch.flatten: "flatten",
}
_TORCH_FUNCTIONS = {
    **{function: _method(name) for function, name in METHODS_BY_FUNCTION.items()},
    torch.stack: shapes.stack,
    torch.cat: shapes.cat,
    torch.concat: shapes.cat,
    torch.concatenate: shapes.cat,
    torch.split: _torch_split,
    torch.flatten: _torch_flatten,
    torch.clone: _torch_clone,
    torch.where: _where,
    torch.autograd.grad: _grad,
    torch.full_like: _full_like,
    **{
        getattr(torch, name): _like(name)
        for name in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like")
    },
    **{
        function: _loss(function)
        for function in (
            torch.nn.functional.mse_loss,
            torch.nn.functional.l1_loss,
            torch.nn.functional.smooth_l1_loss,
        )
    },
}


def __torch_function__(cls, func, types, args=(), kwargs=None):
    function = _TORCH_FUNCTIONS.get(func)
    if function is None:
        return NotImplemented
    return function(*args, **(kwargs or {}))


METHODS = {"__torch_function__": classmethod(__torch_function__)}
