"""Arithmetic on trees."""

from __future__ import annotations

import torch

from leafpack._tree.common import Aligned, TensorDict, by_position, leafwise, ops, tensors_of
from leafpack._tree.compare import LEAF_OPERANDS, is_operand
from leafpack._tree.interop import as_tree


def _completed(a, b, default):
    """Both trees with the leaves of either: "intersection" drops what one lacks, another `default` stands for it."""
    in_a, in_b = ops.keys(a, True, True), ops.keys(b, True, True)
    if default == "intersection":
        common = tuple(key for key in in_a if key in b)
        return ops.select(a, common, True), ops.select(b, common, True)
    a, b = ops.clone(a, False), ops.clone(b, False)
    for tree, lacks in (
        (a, [(k, b) for k in in_b if k not in a]),
        (b, [(k, a) for k in in_a if k not in b]),
    ):
        for key, source in lacks:
            like = source._get(key)
            if isinstance(like, torch.Tensor):
                tree._set(
                    key,
                    (
                        default.expand_as(like)
                        if isinstance(default, torch.Tensor)
                        else torch.full_like(like, default)
                    ),
                )
            else:
                tree._set(key, like)
    return a, b


def _operation(name, inplace=False):
    whole = getattr(ops, name + "_" if inplace else name)
    per_leaf = getattr(torch, name)

    def method(self, other, *, default=None):
        if default is not None and not isinstance(other, (torch.Tensor, Aligned)):
            self, other = _completed(self, as_tree(other, self, "other"), default)
        if isinstance(other, (torch.Tensor, Aligned)):
            if not inplace:
                return leafwise(self, per_leaf, other, what=name)
            each = getattr(ops, name + "_each")
            if isinstance(other, Aligned):
                _, fitting = other.beside(self, name + "_", inplace=True)
                each(self, [fitting(leaf) for leaf in tensors_of(self)])
            else:
                each(self, [other] * len(tensors_of(self)))
            return self
        if not isinstance(other, (TensorDict, int, float, complex)):
            other = as_tree(other, self, "other")
        result = whole(self, other)
        return self if inplace else result

    if inplace:
        with_default = method

        def method(self, other):
            return with_default(self, other)

    method.__name__ = name + "_" if inplace else name
    method.__doc__ = (
        f"torch.{name} of all tensors with a number, a tensor, or the tensors of another tree"
        + (", in place." if inplace else ".")
    )
    return by_position(method)


def _scaled(name, inplace=False):
    plain = _operation(name, inplace).__wrapped__
    whole = getattr(ops, f"{name}_scaled" + ("_" if inplace else ""))

    def method(self, other, *, alpha=None, default=None):
        if alpha is None and default is None:
            return plain(self, other)
        if default is not None and not isinstance(other, LEAF_OPERANDS):
            self, other = _completed(self, as_tree(other, self, "other"), default)
        if alpha is None:
            return plain(self, other)
        if isinstance(other, Aligned):
            return plain(self, Aligned(other.tensor * alpha))
        if isinstance(other, LEAF_OPERANDS):
            return plain(self, other * alpha)
        result = whole(self, as_tree(other, self, "other"), alpha)
        return self if inplace else result

    if inplace:
        with_default = method

        def method(self, other, *, alpha=None):
            return with_default(self, other, alpha=alpha)

    method.__name__ = plain.__name__
    method.__doc__ = plain.__doc__[:-1] + ", times `alpha`."
    return by_position(method)


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


def addcmul(self, other1, other2, *, value=1):
    """self + value * other1 * other2."""
    return addcmul_(ops.clone(self, True), other1, other2, value=value)


def addcdiv(self, other1, other2, *, value=1):
    """self + value * other1 / other2."""
    return addcdiv_(ops.clone(self, True), other1, other2, value=value)


@by_position
def clamp(self, min=None, max=None, *, out=None):
    """torch.clamp of all tensors, with numbers, tensors or trees."""
    bounds = (min, max)
    if min is None or max is None:  # as clamp_min and clamp_max, also by keyword
        bounds = [Aligned(b) if isinstance(b, torch.Tensor) and b.dim() else b for b in bounds]
    if all(_plain_operand(bound) for bound in bounds):
        result = leafwise(self, torch.clamp, *_alike(self, bounds), what="clamp")
    else:
        trees = tuple(as_tree(bound, self) for bound in bounds if not _plain_operand(bound))
        if any(isinstance(bound, Aligned) for bound in bounds):
            raise TypeError("clamp: the bounds are a tree and a tensor with dimensions: give two of one kind")

        def clamped(leaf, *given):
            given = iter(given)
            return torch.clamp(leaf, *[b if _plain_operand(b) else next(given) for b in bounds])

        result = ops.apply(self, clamped, trees, "none", None, None)
    if out is None:
        return result
    ops.update_in_place(out, result, False)
    return out


def _alike(tree, bounds):
    """torch takes no number beside a tensor."""
    if not any(isinstance(bound, (torch.Tensor, Aligned)) for bound in bounds):
        return bounds
    return [torch.tensor(b) if isinstance(b, (int, float)) else b for b in bounds]


def _plain_operand(value):
    return value is None or isinstance(value, (torch.Tensor, Aligned, int, float))


def _per_leaf(name, inplace=False):
    """A method for torch's function of two tensors that has no kernel for many."""
    function = getattr(torch.Tensor, name)

    def method(self, other, *, default=None):
        tree = self
        if default is not None and not isinstance(other, (torch.Tensor, Aligned)):
            tree, other = _completed(self, as_tree(other, self, "other"), default)
        if inplace and isinstance(other, Aligned):
            other.beside(self, name + "_", inplace=True)
        if isinstance(other, LEAF_OPERANDS):
            result = leafwise(tree, function, other, what=name)
        else:
            result = ops.apply(tree, function, (as_tree(other, self, "other"),), "none", None, None)
        if not inplace:
            return result
        ops.update_in_place(self, result, False)
        return self

    if inplace:
        with_default = method

        def method(self, other):
            return with_default(self, other)

    method.__name__ = name + "_" if inplace else name
    method.__doc__ = f"torch.{name} of all tensors with a number, a tensor or another tree" + (
        ", in place." if inplace else "."
    )
    return by_position(method)


def _question(name):
    function = getattr(torch, name)

    def method(self):
        return ops.apply(self, function, (), "none", None, None)

    method.__name__ = name
    method.__doc__ = f"torch.{name} of all tensors."
    return method


@by_position
def rsub(self, other, *, alpha=None, default=None):
    """other - alpha * self."""
    if default is not None and not isinstance(other, LEAF_OPERANDS):
        self, other = _completed(self, as_tree(other, self, "other"), default)
    subtracted = self if alpha is None else METHODS["mul"](self, alpha)
    return METHODS["neg"](METHODS["sub"].__wrapped__(subtracted, other))


@by_position
def mod(self, other):
    """torch.remainder of all tensors with a number, a tensor or another tree."""
    return _REMAINDER.__wrapped__(self, other)


def norm(self, *, ord=2.0, dtype=None):
    """The norm of every tensor, computed in `dtype`: a tree without batch dimensions."""
    return ops.leaf_norms(self if dtype is None else ops.to(self, None, dtype, False), float(ord))


def total_norm(self, ord=2.0):
    """The norm of all elements of the tree together: a tensor."""
    return ops.total_norm(self, float(ord))


def clip_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scales all tensors so that their common norm is at most `max_norm`; returns the norm before."""
    return ops.clip_norm_(self, float(max_norm), float(norm_type), error_if_nonfinite)


def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """clip_norm_ of the gradients of the tensors, as torch.nn.utils.clip_grad_norm_ does."""
    return ops.clip_norm_(ops.grads(self), float(max_norm), float(norm_type), error_if_nonfinite)


_REMAINDER = _per_leaf("remainder")


def _extreme_in_place(name):
    def method(self, other):
        if isinstance(other, Aligned):
            other.beside(self, name + "_", inplace=True)
        ops.update_in_place(self, METHODS[name].__wrapped__(self, other), False)
        return self

    method.__name__ = name + "_"
    method.__doc__ = f"{name} in place."
    return by_position(method)


METHODS = {
    function.__name__: function
    for function in (
        lerp, lerp_, addcmul_, addcdiv_, addcmul, addcdiv, clamp, rsub, mod, norm, total_norm, clip_norm_, clip_grad_norm_,
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
METHODS |= {
    _name: _question(_name) for _name in ("isfinite", "isnan", "isreal", "isposinf", "isneginf")
}
METHODS |= {
    _name: _per_leaf(_name) for _name in ("clamp_min", "clamp_max", "bitwise_and", "logical_and")
}
METHODS |= {_name + "_": _per_leaf(_name, inplace=True) for _name in ("clamp_min", "clamp_max")}
METHODS |= {_name + "_": _extreme_in_place(_name) for _name in ("maximum", "minimum")}
METHODS["__mod__"] = _operator(mod)
METHODS |= {"__neg__": METHODS["neg"], "__abs__": METHODS["abs"]}
