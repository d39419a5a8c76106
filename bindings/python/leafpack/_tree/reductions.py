"""Sums, means, extremes and their like: of all elements, along batch dimensions, or along the dimensions behind them."""

from __future__ import annotations

import torch

from leafpack._tree.common import NO_VALUE, mapped, tensors_of


def _batch_dims(tree, dim, name):
    """The batch dimensions that `dim` names, sorted."""
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    count = len(tree.batch_size)
    result = sorted(d + count if d < 0 else d for d in dims)
    if any(not 0 <= d < count for d in result):
        raise IndexError(f"{name}: dimension {dim} of a tree with {count} batch dimensions")
    if len(frozenset(result)) != len(result):
        raise ValueError(f"{name}: dimension {dim} comes twice")
    return tuple(result)


def _without(dims, keepdim):
    """What becomes of a batch size that is reduced along `dims`."""

    def sizes(batch_size):
        if keepdim:
            return [1 if i in dims else size for i, size in enumerate(batch_size)]
        return [size for i, size in enumerate(batch_size) if i not in dims]

    return sizes


def _reduced(tree, function, dim, keepdim, name):
    """A tree of function(leaf, dims, keepdim)."""
    keepdim = False if keepdim is NO_VALUE else keepdim
    if dim is NO_VALUE or dim is None:
        if not keepdim:
            result = mapped(tree, lambda leaf, size: function(leaf, None, False), lambda size: [])
        else:
            ones = _without(range(len(tree.batch_size) + 64), True)
            result = mapped(
                tree, lambda leaf, size: function(leaf, tuple(range(leaf.dim())), True), ones
            )
        return result
    if dim == "feature":
        return mapped(
            tree,
            lambda leaf, size: _feature(function, leaf, len(size), keepdim),
            lambda size: size,
            names=True,
        )
    dims = _batch_dims(tree, dim, name)
    return mapped(
        tree,
        lambda leaf, size: function(leaf, dims, keepdim),
        _without(dims, keepdim),
        names=keepdim or [n for i, n in enumerate(tree.names) if i not in dims],
    )


def _feature(function, leaf, first, keepdim):
    dims = tuple(range(first, leaf.dim()))
    if dims:
        return function(leaf, dims, keepdim)
    return function(leaf.unsqueeze(-1), (-1,), False)


def _dense(tree, name):
    leaves = tensors_of(tree)
    if not leaves:
        raise ValueError(f"{name}: a tree without tensors has none")
    return leaves


def _reduction(name, of_dims):
    """A method for torch's function of this name, which takes several dimensions."""

    def method(self, dim=NO_VALUE, keepdim=NO_VALUE, *, reduce=None, **options):
        if reduce:
            return _all_as_one(self, name, of_dims, dim, keepdim, options)
        return _reduced(
            self, lambda leaf, dims, keep: of_dims(leaf, dims, keep, **options), dim, keepdim, name
        )

    method.__name__ = name
    method.__doc__ = (
        f'torch.{name} of every tensor: of all elements, along batch dimensions, or with dim="feature" along all'
        " dimensions behind them. With `reduce`, of the whole tree: a tensor."
    )
    return method


def _all_as_one(tree, name, of_dims, dim, keepdim, options):
    leaves = _dense(tree, name)
    if dim is NO_VALUE or dim is None:
        flat = torch.cat([leaf.reshape(-1) for leaf in leaves])
        return of_dims(flat, None, False, **options)
    if dim == "feature":
        rows = torch.cat(
            [
                (
                    leaf.flatten(len(tree.batch_size))
                    if leaf.dim() > len(tree.batch_size)
                    else leaf.unsqueeze(-1)
                )
                for leaf in leaves
            ],
            -1,
        )
        return of_dims(rows, (-1,), False, **options)
    dims = _batch_dims(tree, dim, name)
    keep = False if keepdim is NO_VALUE else keepdim
    return of_dims(torch.cat(leaves, dims[0]), dims, keep, **options)


def _along(function):
    """`function` for torch's functions that take a tuple of dimensions."""

    def of_dims(leaf, dims, keepdim, **options):
        if dims is None:
            return function(leaf, **options)
        return function(leaf, dim=dims, keepdim=keepdim, **options)

    return of_dims


def _prod(leaf, dims, keepdim, *, dtype=None):
    if dims is None:
        return torch.prod(leaf, dtype=dtype)
    for dim in sorted((d % leaf.dim() for d in dims), reverse=True):
        leaf = torch.prod(leaf, dim, keepdim=keepdim, dtype=dtype)
    return leaf


def _quantile(leaf, dims, keepdim, *, q, interpolation="linear"):
    if dims is None:
        return torch.quantile(leaf, q, interpolation=interpolation)
    if len(dims) > 1:
        raise ValueError("quantile: one dimension at a time")
    return torch.quantile(leaf, q, dims[0], keepdim, interpolation=interpolation)


def quantile(self, q, dim=NO_VALUE, keepdim=NO_VALUE, *, interpolation="linear", reduce=None):
    """torch.quantile of every tensor, for one number `q`."""
    return _QUANTILE(self, dim, keepdim, reduce=reduce, q=q, interpolation=interpolation)


def _extreme(name):
    function, of_all = getattr(torch, name), getattr(torch, "a" + name)

    def method(self, dim=NO_VALUE, keepdim=False, *, reduce=None, return_indices=True):
        if reduce:
            return _all_as_one(self, name, _along(of_all), dim, keepdim, {})
        if dim is NO_VALUE or dim is None:
            return _reduced(self, lambda leaf, dims, keep: of_all(leaf), NO_VALUE, False, name)
        (place,) = _batch_dims(self, dim, name)
        if not return_indices:
            return _reduced(self, _along(of_all), place, keepdim, name)
        return _with_indices(
            self, name, lambda leaf: function(leaf, place, keepdim), (place,), keepdim
        )

    method.__name__ = name
    method.__doc__ = f"torch.{name} of every tensor; along a batch dimension a named tuple of trees: values and indices."
    return method


def _running(name):
    function = getattr(torch, name)

    def method(self, dim, *, reduce=None, return_indices=True):
        if reduce:
            raise TypeError(f"{name} of a whole tree as one is not there")
        (place,) = _batch_dims(self, dim, name)
        both = _with_indices(self, name, lambda leaf: function(leaf, place), (), True)
        return both if return_indices else both[0]

    method.__name__ = name
    method.__doc__ = f"torch.{name} of every tensor along a batch dimension: values and indices."
    return method


def _with_indices(tree, name, function, dims, keepdim):
    kept = []

    def values(leaf, size):
        result = function(leaf)
        kept.append(result.indices)
        return result.values

    sizes = _without(dims, keepdim)
    first = mapped(tree, values, sizes)
    kept.reverse()
    second = mapped(tree, lambda leaf, size: kept.pop(), sizes)
    return getattr(torch.return_types, name)((first, second))


def logsumexp(self, dim=None, keepdim=False, *, out=None):
    """torch.logsumexp of every tensor along batch dimensions; all of them without `dim`."""
    dims = _batch_dims(
        self, tuple(range(len(self.batch_size))) if dim is None else dim, "logsumexp"
    )
    result = mapped(
        self, lambda leaf, size: torch.logsumexp(leaf, dims, keepdim), _without(dims, keepdim)
    )
    return result if out is None else out.update(result)


def softmax(self, dim, dtype=None):
    """torch.softmax of every tensor along a batch dimension."""
    (place,) = _batch_dims(self, dim, "softmax")
    return mapped(
        self, lambda leaf, size: torch.softmax(leaf, place, dtype), lambda size: size, names=True
    )


def all(self, dim=None):
    """Whether all elements of all tensors are true; with a batch dimension, a tree that tells it along `dim`."""
    if dim is not None:
        return _reduced(self, _along(torch.all), dim, False, "all")
    for leaf in tensors_of(self):
        if not leaf.all():
            return False
    return True


def any_(self, dim=None):
    """Whether an element of a tensor is true; with a batch dimension, a tree that tells it along `dim`."""
    if dim is not None:
        return _reduced(self, _along(torch.any), dim, False, "any")
    return any(bool(leaf.any()) for leaf in tensors_of(self))


METHODS = {
    name: _reduction(name, _along(getattr(torch, name)))
    for name in ("sum", "nansum", "mean", "nanmean", "std", "var", "amin", "amax")
}
_QUANTILE = _reduction("quantile", _quantile)
METHODS |= {"prod": _reduction("prod", _prod)}
METHODS |= {"min": _extreme("min"), "max": _extreme("max")}
METHODS |= {"cummin": _running("cummin"), "cummax": _running("cummax")}
METHODS |= {
    "quantile": quantile,
    "logsumexp": logsumexp,
    "softmax": softmax,
    "all": all,
    "any": any_,
}
any_.__name__ = "any"
