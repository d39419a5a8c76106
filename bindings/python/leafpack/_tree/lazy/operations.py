"""What a LazyStack does tree by tree, with all trees as one, or as the dense tree."""

from __future__ import annotations

import torch

from leafpack._tree import arithmetic, compare, shapes as dense_shapes, torch_functions
from leafpack._tree.common import TensorDict
from leafpack._tree.lazy.stack import LazyStack, is_tree


def apply(self, fn, *others, batch_size=None, inplace=False, **options):
    """apply of each tree; `fn` gets tensors without the dimension of the stack."""
    rows = [self._trees_of(other) for other in others]
    if batch_size is not None:
        batch_size = list(batch_size)
        count = len(self.tensordicts)
        if len(batch_size) <= self.stack_dim or batch_size.pop(self.stack_dim) != count:
            raise ValueError("the batch size must keep the dimension of the stack")
    trees = [
        tree.apply(fn, *beside, batch_size=batch_size, inplace=inplace, **options)
        for tree, *beside in zip(tuple(self.tensordicts), *rows)  # which fn may change
    ]
    return self if inplace else self._like(trees)


def named_apply(self, fn, *others, **options):
    """named_apply of each tree."""
    rows = [self._trees_of(other) for other in others]
    return self._like(
        tree.named_apply(fn, *beside, **options)
        for tree, *beside in zip(tuple(self.tensordicts), *rows)  # which fn may change
    )


def apply_(self, fn, *others):
    """apply in place."""
    return apply(self, fn, *others, inplace=True)


def all_(self, dim=None):
    """Whether all elements of all tensors are true; with a batch dimension, of the dense tree along it."""
    if dim is not None:
        return self.contiguous().all(dim)
    return all(tree.all() for tree in self.tensordicts)


def any_(self, dim=None):
    """Whether an element of a tensor is true; with a batch dimension, of the dense tree along it."""
    if dim is not None:
        return self.contiguous().any(dim)
    return any(tree.any() for tree in self.tensordicts)


def equal(self, other):
    """Whether the other is a stack along the same dimension of equal trees."""
    return _all_pairs(self, other, lambda a, b: a.equal(b))


def allclose(self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
    """equal, up to small differences of the numbers."""
    return _all_pairs(self, other, lambda a, b: a.allclose(b, rtol, atol, equal_nan))


def _all_pairs(self, other, question):
    if not isinstance(other, LazyStack) or other.batch_size != self.batch_size:
        return False
    if other.stack_dim != self.stack_dim:
        return False
    return all(map(question, self.tensordicts, other.tensordicts))


def consolidate(self, **options):
    """A copy in one storage, which collectives do not have to pack."""
    whole = TensorDict(dict(enumerate(self._dense_trees()))).consolidate(**options)
    return self._around(iter(whole.values()))


def load_state_dict(self, state_dict, strict=True, assign=False, from_flatten=None, *, cast=False):
    """Copies the leaves of a state dict of the dense tree into these trees."""
    if assign:
        raise ValueError("a stack has no tensors that could take the places: use assign=False")
    self.update_(self.contiguous().load_state_dict(state_dict, strict, cast=cast))
    return self


def tolist(self, *, convert_tensors=False):
    """Nested lists of dicts along the batch dimensions."""
    return [part.tolist(convert_tensors=convert_tensors) for part in self.unbind(0)]


def to_tensordict(self):
    """A tensordict.LazyStackedTensorDict of the same tensors."""
    import tensordict

    return tensordict.lazy_stack([tree.to_tensordict() for tree in self.tensordicts], self.stack_dim)


# A tree each, without other trees among the arguments. Names that end in _ work in place.
_TREE_BY_TREE = """
    select exclude flatten_keys unflatten_keys rename_key_ rename_keys create_nested set_non_tensor filter_empty_
    filter_non_tensor_data fill_ clear to cpu cuda type clone copy detach detach_ zero_ requires_grad_ lock_ unlock_
    empty clear_device_ zero_grad share_memory_ pin_memory clamp isfinite isnan isreal isposinf isneginf __neg__
    __abs__ __invert__ float double half bfloat16 int bool float16 float32 float64 int8 int16 int32 int64 uint8 uint16
    uint32 uint64 complex32 complex64 complex128
""".split() + [name + end for name in arithmetic.ops.unary for end in ("", "_")]
# A tree each, with the part of each other tree, and of each tensor with dimensions, that stands beside it.
_WITH_OTHERS = """
    add sub mul div pow maximum minimum add_ sub_ mul_ div_ pow_ maximum_ minimum_ clamp_min clamp_max clamp_min_
    clamp_max_ lerp lerp_ addcmul addcdiv addcmul_ addcdiv_ bitwise_and logical_and rsub mod where masked_fill
    masked_fill_ __add__ __sub__ __mul__ __truediv__ __pow__ __mod__ __radd__ __rsub__ __rmul__ __rtruediv__ __rpow__
    __iadd__ __isub__ __imul__ __itruediv__ __ipow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__
    __rand__ __ror__ __rxor__
""".split()
# All trees as one.
_AS_ONE = """
    bytes layout_digest total_norm clip_norm_ clip_grad_norm_ param_count is_floating_point is_consolidated is_shared
    backward
""".split()
# Of the dense tree: results are dense, and trees that differ are an error that names the path.
_DENSE = """
    sum nansum mean nanmean std var prod amin amax min max cummin cummax quantile logsumexp softmax norm gather
    masked_select flip fliplr flipud roll rot90 tile pad new_zeros new_ones new_full new_empty state_dict to_dict
    to_namedtuple to_pytree to_struct_array numpy
""".split()


def _tree_by_tree(name):
    in_place = name.endswith("_") and not name.startswith("__")
    in_place = in_place or name in ("clear", "create_nested", "set_non_tensor", "zero_grad")

    def method(self, *args, **kwargs):
        made = [getattr(tree, name)(*args, **kwargs) for tree in self.tensordicts]
        return self if in_place else self._like(made)

    return method


def _beside(self, value):
    """One part of an argument for each tree."""
    if is_tree(value):
        return self._trees_of(value)
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        return self._parts(value, "the tensor")
    return [value] * len(self.tensordicts)


def _with_others(name):
    in_place = name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))

    def method(self, *args, **kwargs):
        if name.startswith("__") and not (
            is_tree(args[0]) or isinstance(args[0], (torch.Tensor, int, float, complex))
        ):
            return NotImplemented
        rows = zip(*(_beside(self, value) for value in (*args, *kwargs.values())))
        made = []
        for tree, row in zip(self.tensordicts, rows):
            named = dict(zip(kwargs, row[len(args) :]))
            made.append(getattr(tree, name)(*row[: len(args)], **named))
        return self if in_place else self._like(made)

    return method


def _as_one(name):
    def method(self, *args, **kwargs):
        return getattr(self._tree(), name)(*args, **kwargs)

    return method


def _of_dense(name):
    def method(self, *args, **kwargs):
        return getattr(self.contiguous(), name)(*args, **kwargs)

    return method


def _depth(self):
    return max(tree.depth for tree in self.tensordicts)


def _data(self):
    return self._like(tree.data for tree in self.tensordicts)


def _grad(self):
    return self._like(tree.grad for tree in self.tensordicts)


METHODS = {
    function.__name__.rstrip("_") if function in (all_, any_) else function.__name__: function
    for function in (
        apply, named_apply, apply_, all_, any_, equal, allclose, consolidate, load_state_dict, tolist, to_tensordict,
    )
}  # fmt: skip
METHODS |= {
    name: getattr(dense_shapes, name) for name in ("rename", "rename_", "refine_names")
}
METHODS |= {
    "is_contiguous": lambda self: False,
    "depth": property(_depth, doc="How many levels of nodes there are below the trees."),
    "data": property(_data, doc="The tensors without their history."),
    "grad": property(_grad, doc="The gradients of the tensors."),
    "sorted_keys": property(lambda self: self.keys()),
    "dtype": property(lambda self: self._tree().dtype, doc="The dtype of all tensors, if it is one."),
    **{
        name: property(lambda self, name=name: all(getattr(t, name) for t in self.tensordicts))
        for name in ("is_cpu", "is_cuda", "is_meta")
    },
}


def attach() -> None:
    """Gives LazyStack the methods that it has from leafpack.TensorDict. After that has its own."""
    for make, names in (
        (_tree_by_tree, _TREE_BY_TREE),
        (_with_others, _WITH_OTHERS),
        (_as_one, _AS_ONE),
        (_of_dense, _DENSE),
    ):
        for name in names:
            method = make(name)
            method.__name__ = name
            method.__qualname__ = f"LazyStack.{name}"
            method.__doc__ = getattr(TensorDict, name).__doc__
            setattr(LazyStack, name, method)


def _torch_stack(tensors, dim=0, *, out=None):
    """A stack of stacks: its trees are the stacks of the trees of each."""
    if out is not None:
        raise TypeError("stack of lazy stacks takes no out")
    stacks = list(tensors)
    first = stacks[0]
    places = first.batch_dims + 1
    if not -places <= dim < places:
        raise ValueError(f"stack: dimension {dim} of {places}")
    dim %= places
    if any(not isinstance(s, LazyStack) or s.stack_dim != first.stack_dim for s in stacks):
        raise ValueError("stack: all must be stacks along the same dimension")
    if any(len(s.tensordicts) != len(first.tensordicts) for s in stacks):
        raise ValueError("stack: stacks of different lengths")
    inner = dim if dim <= first.stack_dim else dim - 1
    trees = [torch.stack(list(row), inner) for row in zip(*(s.tensordicts for s in stacks))]
    return first._like(trees, first.stack_dim + (dim <= first.stack_dim))


def _torch_cat(tensors, dim=0, *, out=None):
    if out is not None:
        raise TypeError("cat of lazy stacks takes no out")
    stacks = list(tensors)
    first = stacks[0]
    dim = first._dim(dim)
    if any(not isinstance(s, LazyStack) or s.stack_dim != first.stack_dim for s in stacks):
        raise ValueError("cat: all must be stacks along the same dimension")
    if dim == first.stack_dim:
        return first._like([tree for s in stacks for tree in s.tensordicts])
    if any(len(s.tensordicts) != len(first.tensordicts) for s in stacks):
        raise ValueError("cat: stacks of different lengths")
    inner = dim - (dim > first.stack_dim)
    return first._like(
        torch.cat(list(row), inner) for row in zip(*(s.tensordicts for s in stacks))
    )


def _torch_where(condition, input, other, *, out=None):
    if out is not None:
        raise TypeError("where of lazy stacks takes no out")
    if isinstance(input, LazyStack):
        return input.where(condition, other)
    return other.where(~condition, input)


def _each(function):
    def method(input, *args, **kwargs):
        return input._like(function(tree, *args, **kwargs) for tree in input.tensordicts)

    return method


_TORCH_FUNCTIONS = {
    torch.stack: _torch_stack,
    torch.where: _torch_where,
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _torch_cat),
    **{
        function: _each(function)
        for function in (
            torch.zeros_like, torch.ones_like, torch.empty_like, torch.rand_like, torch.randn_like, torch.full_like,
        )
    },
}  # fmt: skip


def _torch_function(cls, func, types, args=(), kwargs=None):
    function = _TORCH_FUNCTIONS.get(func)
    if function is None:
        if func not in torch_functions.METHODS_BY_FUNCTION:
            return NotImplemented
        function = getattr(LazyStack, torch_functions.METHODS_BY_FUNCTION[func], None)
        if function is None or not isinstance(args[0], LazyStack):
            return NotImplemented
    return function(*args, **(kwargs or {}))


METHODS["__torch_function__"] = classmethod(_torch_function)
