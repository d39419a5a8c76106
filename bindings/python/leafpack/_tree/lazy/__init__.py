"""LazyStack: trees side by side along a batch dimension that are not copied together.

Their leaves may differ in shape and their keys may differ. Names and results are those of
tensordict.LazyStackedTensorDict.
"""

from __future__ import annotations

import inspect

from leafpack._tree.common import TensorDict, ops
from leafpack._tree.lazy import files, indexing, operations, shapes
from leafpack._tree.lazy.stack import LazyStack

__all__ = ["METHODS", "LazyStack", "attach", "lazy_stack", "maybe_dense_stack"]


def lazy_stack(input, dim=0, *, out=None):
    """A LazyStack of trees, or of stacks, that are not copied; they may differ in shapes and keys."""
    trees = list(input)
    if out is None:
        return LazyStack(*trees, stack_dim=dim)
    out.update_(LazyStack(*trees, stack_dim=dim))
    return out


def maybe_dense_stack(input, dim=0, *, out=None):
    """The dense stack where trees have one layout, a LazyStack where they differ."""
    trees = list(input)
    if trees and all(isinstance(t, TensorDict) and t.same_layout(trees[0]) for t in trees):
        return TensorDict.stack(trees, dim, out=out)
    return lazy_stack(trees, dim, out=out)


def to_lazystack(self, dim=0):
    """A LazyStack of the parts of this tree along a batch dimension; views."""
    return LazyStack(*ops.unbind(self, dim), stack_dim=dim)


# Of leafpack.TensorDict.
METHODS = {
    "lazy_stack": staticmethod(lazy_stack),
    "maybe_dense_stack": staticmethod(maybe_dense_stack),
    "to_lazystack": to_lazystack,
}


def attach() -> None:
    """Gives LazyStack its methods. After leafpack.TensorDict has its own."""
    for theme in (indexing, shapes, operations, files):
        for name, method in theme.METHODS.items():
            if inspect.isfunction(method) and not name.startswith("_"):
                method.__qualname__ = f"LazyStack.{method.__name__}"
            setattr(LazyStack, name, method)
    operations.attach()
    files.attach()
    LazyStack.lazy_stack = staticmethod(lazy_stack)
    LazyStack.maybe_dense_stack = staticmethod(maybe_dense_stack)
