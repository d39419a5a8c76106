"""What all methods of leafpack.TensorDict share: its class, the operations in C++, and how arguments are read."""

from __future__ import annotations

import torch

from leafpack import _C

ops = _C.ops
TensorDict = _C.TensorDict
MISSING = object()


class _NoValue:
    """The default of arguments for which None means something."""

    def __repr__(self):
        return "<no value>"


NO_VALUE = _NoValue()


def is_key(key) -> bool:
    """Whether what stands in brackets is a key: a str, or a tuple with one. Everything else is an index."""
    kind = type(key)
    return kind is str or (kind is tuple and any(type(part) is str for part in key))


def sizes_of(args, *others):
    """The sizes in f(2, 3), f((2, 3)) or f(size=(2, 3))."""
    for other in others:
        if other is not None:
            if args:
                raise TypeError("sizes are given twice")
            return tuple(other)
    if len(args) == 1 and not hasattr(args[0], "__index__"):
        return tuple(args[0])
    return args


def into(self, result, inplace):
    """`result`, or `self` with the children of `result`."""
    if not inplace:
        return result
    if self.is_locked:
        raise RuntimeError("the tree is locked: its structure cannot change")
    self.clear()
    ops.update(self, result)
    return self


def tensors_of(self):
    return [leaf for leaf in ops.values(self, True, True) if isinstance(leaf, torch.Tensor)]


def mapped(tree, of_leaf, of_sizes, names=None):
    """A tree of of_leaf(tensor, batch size of its node), whose nodes have the batch sizes of_sizes(batch size).

    `names` are those of the result's dimensions; True takes them from the tree.
    """
    result = TensorDict(batch_size=of_sizes(tree.batch_size))
    for key, value in ops.items(tree, False, False):
        if isinstance(value, torch.Tensor):
            try:
                value = of_leaf(value, tree.batch_size)
            except Exception as error:
                error.add_note(f"at {key!r} of the tree")
                raise
        elif isinstance(value, TensorDict):
            value = mapped(value, of_leaf, of_sizes)
        result._set(key, value)
    names = tree.names if names is True else names
    if names and any(name is not None for name in names):
        ops.set_names(result, names)
    return result
