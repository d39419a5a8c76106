"""What all methods of leafpack.TensorDict share: its class, the operations in C++, and how arguments are read."""

from __future__ import annotations

import functools

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


def number(value):
    """numpy's numbers as Python's; everything else as it is."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    return value


class Aligned:
    """A tensor with dimensions as an operand of a tree: its dimensions are those of the batch, not the last of a leaf."""

    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor

    def beside(self, tree, what, inplace=False):
        """The tree with the common batch size of both, and what makes of a leaf of it the operand for this leaf."""
        try:
            shape = torch.broadcast_shapes(tree.batch_size, self.tensor.shape)
        except RuntimeError:
            shape = None
        if shape is None or (inplace and shape != tree.batch_size):
            raise ValueError(
                f"{what}: a tensor of shape {list(self.tensor.shape)} does not fit the batch size"
                f" {list(tree.batch_size)}: an operand is aligned with the batch dimensions"
            )
        if shape != tree.batch_size:
            tree = ops.expand(tree, shape)
        tensor = self.tensor.expand(shape)
        return tree, lambda leaf: tensor[(...,) + (None,) * (leaf.dim() - len(shape))]


def by_position(method):
    """`method`, which gets tensors with dimensions that are given by position as Aligned, and numpy's numbers as Python's.

    Tensors given by keyword are as in tensordict: torch broadcasts them with each leaf.
    """

    @functools.wraps(method)
    def wrapped(self, *args, **kwargs):
        args = [Aligned(v) if isinstance(v, torch.Tensor) and v.dim() else number(v) for v in args]
        return method(self, *args, **{name: number(value) for name, value in kwargs.items()})

    return wrapped


def leafwise(tree, function, *operands, what):
    """A tree of function(leaf, *operands), which are numbers, None, tensors and Aligned."""
    aligned = [operand for operand in operands if isinstance(operand, Aligned)]
    for operand in aligned:  # the batch size that all have in common
        tree, _ = operand.beside(tree, what)
    fitting = [
        operand.beside(tree, what)[1] if isinstance(operand, Aligned) else lambda leaf, same=operand: same
        for operand in operands
    ]
    return ops.apply(
        tree, lambda leaf: function(leaf, *[fit(leaf) for fit in fitting]), (), "none", None, None
    )


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
