"""Measures of trees and comparisons, of elements and of whole trees."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from leafpack._tree.common import Aligned, TensorDict, by_position, leafwise, number, ops
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


# What stands beside each leaf, in place of a tree.
LEAF_OPERANDS = (torch.Tensor, Aligned, int, float, complex)


def is_operand(other):
    other = number(other)
    return isinstance(other, (TensorDict, *LEAF_OPERANDS, Mapping)) or hasattr(other, "batch_size")


def _elementwise(name, function):
    def method(self, other):
        if not is_operand(other):
            return NotImplemented
        other = number(other)
        if isinstance(other, LEAF_OPERANDS):
            return leafwise(self, function, other, what=name)
        return ops.apply(self, function, (as_tree(other, self),), "none", None, None)

    method.__name__ = name
    # tensordict aligns operands of & alone with the last dimensions, as torch does.
    return method if name == "__and__" else by_position(method)


@by_position
def __eq__(self, other):
    if not is_operand(other):
        return NotImplemented
    if isinstance(other, LEAF_OPERANDS):
        return leafwise(self, torch.eq, other, what="__eq__")
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
    "__array_ufunc__": None,  # numpy's numbers leave operations to the tree
    "__rand__": METHODS["__and__"],
    "__ror__": METHODS["__or__"],
    "__rxor__": METHODS["__xor__"],
}
