"""Measures of trees and comparisons, of elements and of whole trees."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from leafpack._tree.common import TensorDict, ops
from leafpack._tree.interop import as_tree


def __bool__(self):
    raise RuntimeError(
        "a tree is neither true nor false: use is_empty(), len(tree.keys()) or (a == b).all()"
    )


def numel(self):
    """Number of elements of the batch."""
    return ops.batch_numel(self)


def bytes(self, *, count_duplicates=True):
    """Bytes of the elements of all tensors; without duplicates, of those that are not the same memory."""
    return ops.bytes(self, count_duplicates)


def is_empty(self):
    """Whether no leaf stands in the whole tree."""
    return ops.is_empty(self)


def allclose(self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
    """Whether both have one structure and nearly equal values."""
    return ops.allclose(self, as_tree(other, self, "other"), rtol, atol, equal_nan)


def equal(self, other):
    """Whether both have one structure, and equal shapes, dtypes and values."""
    return ops.equal(self, as_tree(other, self, "other"))


def is_operand(other):
    return isinstance(other, (TensorDict, torch.Tensor, bool, int, float, complex, Mapping)) or (
        hasattr(other, "batch_size")
    )


def _elementwise(name, function):
    def method(self, other):
        if not is_operand(other):
            return NotImplemented
        if isinstance(other, (torch.Tensor, int, float, complex)):
            return ops.apply(self, lambda leaf: function(leaf, other), (), "none", None, None)
        return ops.apply(self, function, (as_tree(other, self),), "none", None, None)

    method.__name__ = name
    return method


def __eq__(self, other):
    if not is_operand(other):
        return NotImplemented
    if isinstance(other, (torch.Tensor, int, float, complex)):
        return ops.apply(self, lambda leaf: torch.eq(leaf, other), (), "none", None, None)
    return ops.elements_equal(self, as_tree(other, self))


def __ne__(self, other):
    equal = __eq__(self, other)
    return equal if equal is NotImplemented else __invert__(equal)


def __invert__(self):
    return ops.apply(self, torch.bitwise_not, (), "none", None, None)


_COMPARISONS = {
    "__lt__": torch.lt, "__le__": torch.le, "__gt__": torch.gt, "__ge__": torch.ge,
    "__and__": torch.bitwise_and, "__or__": torch.bitwise_or, "__xor__": torch.bitwise_xor,
    "__rsub__": torch.rsub, "__rtruediv__": lambda leaf, other: other / leaf,
    "__rpow__": lambda leaf, other: other**leaf,
}  # fmt: skip


METHODS = {
    function.__name__: function
    for function in (
        __bool__, __eq__, __ne__, __invert__, numel, bytes, is_empty, allclose, equal,
    )
}  # fmt: skip
METHODS |= {name: _elementwise(name, function) for name, function in _COMPARISONS.items()}
METHODS |= {
    "__hash__": None,
    "__rand__": METHODS["__and__"],
    "__ror__": METHODS["__or__"],
    "__rxor__": METHODS["__xor__"],
}
