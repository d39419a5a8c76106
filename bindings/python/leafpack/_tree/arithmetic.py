"""Arithmetic on trees."""

from __future__ import annotations

import torch

from leafpack._tree.common import TensorDict, ops, tensors_of
from leafpack._tree.compare import is_operand
from leafpack._tree.interop import as_tree


def _operation(name, inplace=False):
    whole = getattr(ops, name + "_" if inplace else name)
    per_leaf = getattr(torch, name)

    def method(self, other):
        if isinstance(other, torch.Tensor):
            if not inplace:
                return ops.apply(self, lambda leaf: per_leaf(leaf, other), (), "none", None, None)
            for leaf in tensors_of(self):
                getattr(leaf, name + "_")(other)
            return self
        if not isinstance(other, (TensorDict, int, float, complex)):
            other = as_tree(other, self, "other")
        result = whole(self, other)
        return self if inplace else result

    method.__name__ = name + "_" if inplace else name
    method.__doc__ = (
        f"torch.{name} of all tensors with a number, a tensor, or the tensors of another tree"
        + (", in place." if inplace else ".")
    )
    return method


def _scaled(name, inplace=False):
    plain = _operation(name, inplace)
    whole = getattr(ops, f"{name}_scaled" + ("_" if inplace else ""))

    def method(self, other, *, alpha=None):
        if alpha is None:
            return plain(self, other)
        if isinstance(other, (torch.Tensor, int, float, complex)):
            return plain(self, other * alpha)
        result = whole(self, as_tree(other, self, "other"), alpha)
        return self if inplace else result

    method.__name__ = plain.__name__
    method.__doc__ = plain.__doc__[:-1] + ", times `alpha`."
    return method


def _operator(method, inplace=False):
    def operator(self, other):
        return method(self, other) if is_operand(other) else NotImplemented

    return operator


def _unary(name, inplace):
    whole = getattr(ops, name + "_" if inplace else name)

    def method(self):
        result = whole(self)
        return self if inplace else result

    method.__name__ = name + "_" if inplace else name
    method.__doc__ = f"{name} of all tensors" + (", in place." if inplace else ".")
    return method


def lerp(self, end, weight):
    """self + weight * (end - self)."""
    return ops.lerp(self, as_tree(end, self, "end"), weight)


def lerp_(self, end, weight):
    """lerp in place."""
    ops.lerp_(self, as_tree(end, self, "end"), weight)
    return self


def addcmul_(self, other1, other2, *, value=1):
    """Adds value * other1 * other2 in place."""
    ops.addcmul_(self, as_tree(other1, self), as_tree(other2, self), value)
    return self


def addcdiv_(self, other1, other2, *, value=1):
    """Adds value * other1 / other2 in place."""
    ops.addcdiv_(self, as_tree(other1, self), as_tree(other2, self), value)
    return self


def clamp(self, min=None, max=None):
    """torch.clamp of all tensors, with numbers or tensors."""
    return ops.apply(self, lambda leaf: torch.clamp(leaf, min, max), (), "none", None, None)


def norm(self, *, ord=2.0):
    """The norm of every tensor: a tree without batch dimensions."""
    return ops.leaf_norms(self, float(ord))


def total_norm(self, ord=2.0):
    """The norm of all elements of the tree together: a tensor."""
    return ops.total_norm(self, float(ord))


def clip_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scales all tensors so that their common norm is at most `max_norm`; returns the norm before."""
    return ops.clip_norm_(self, float(max_norm), float(norm_type), error_if_nonfinite)


def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """clip_norm_ of the gradients of the tensors, as torch.nn.utils.clip_grad_norm_ does."""
    return ops.clip_norm_(ops.grads(self), float(max_norm), float(norm_type), error_if_nonfinite)


METHODS = {
    function.__name__: function
    for function in (
        lerp, lerp_, addcmul_, addcdiv_, clamp, norm, total_norm, clip_norm_, clip_grad_norm_,
    )
}  # fmt: skip
for _name in ("add", "sub"):
    METHODS |= {_name: _scaled(_name), _name + "_": _scaled(_name, inplace=True)}
for _name in ("mul", "div", "pow"):
    METHODS |= {_name: _operation(_name), _name + "_": _operation(_name, inplace=True)}
METHODS |= {_name: _operation(_name) for _name in ("maximum", "minimum")}
for _sign, _name in {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "pow": "pow",
}.items():
    METHODS[f"__{_sign}__"] = _operator(METHODS[_name])
    METHODS[f"__i{_sign}__"] = _operator(METHODS[_name + "_"])
METHODS |= {"__radd__": METHODS["__add__"], "__rmul__": METHODS["__mul__"]}
for _name in ops.unary:
    METHODS |= {_name: _unary(_name, False), _name + "_": _unary(_name, True)}
METHODS |= {"__neg__": METHODS["neg"], "__abs__": METHODS["abs"]}
