"""What a class means for a tree of tensors. Called from C++, once for each class that it meets."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch

from leafpack import _C
from leafpack._tensorclass import is_tensorclass
from leafpack._tree.lazy import LazyStack

# The numbers are those of TypeKind in type_kinds.h.
OTHER = 0
TENSOR = 1
NONE = 2
DICT = 3
MAPPING = 4
SEQUENCE = 5
TENSORDICT = 6
LAZY_STACK = 7
WRAPPER = 8
MODULE = 9
NON_TENSOR = 10
LEAFPACK = 11
REFUSED = 12
NON_TENSOR_STACK = 13


def classify(cls: type) -> tuple[int, str | None, str | None]:
    """Returns the kind of `cls`, the attribute that holds its children, and why it is refused."""
    if issubclass(cls, torch.Tensor):
        if issubclass(cls, torch.nn.parameter.UninitializedTensorMixin):
            return REFUSED, None, "is not initialized yet: run its lazy module once"
        return TENSOR, None, None
    if cls is type(None):
        return NONE, None, None
    if issubclass(cls, _C.TensorDict):
        return LEAFPACK, None, None
    if issubclass(cls, LazyStack):
        return LAZY_STACK, "tensordicts", None
    if is_tensorclass(cls):
        return WRAPPER, "_tensordict", None
    # A tensordict can only be met when its package was imported.
    tensordict = sys.modules.get("tensordict")
    if tensordict is not None:
        kind = _classify_tensordict(cls, tensordict)
        if kind is not None:
            return kind
    if issubclass(cls, torch.nn.Module):
        return MODULE, None, None
    if issubclass(cls, dict):
        return DICT, None, None
    if issubclass(cls, (list, tuple)):
        return SEQUENCE, None, None
    if issubclass(cls, Mapping):
        return MAPPING, None, None
    return OTHER, None, None


def _classify_tensordict(cls: type, tensordict) -> tuple[int, str | None, str | None] | None:
    if getattr(cls, "_is_non_tensor", False) is True:
        if issubclass(cls, tensordict.LazyStackedTensorDict):
            return NON_TENSOR_STACK, "tensordicts", None
        return NON_TENSOR, None, None
    if issubclass(cls, tensordict.TensorDictParams):
        return WRAPPER, "_param_td", None
    if issubclass(cls, tensordict.LazyStackedTensorDict):
        return LAZY_STACK, "tensordicts", None
    if issubclass(cls, tensordict.TensorDict):
        return TENSORDICT, "_tensordict", None
    if issubclass(cls, tensordict.TensorDictBase):
        if cls.__name__ == "TypedTensorDict" or any(
            base.__name__ == "TypedTensorDict" for base in cls.__mro__
        ):
            return WRAPPER, "_source", None
        return (
            REFUSED,
            None,
            f"a {cls.__name__} holds no leaves of its own that could be reduced in place; "
            "reduce the tensordict that it was made from",
        )
    if tensordict.is_tensorclass(cls):
        return WRAPPER, "_tensordict", None
    return None
