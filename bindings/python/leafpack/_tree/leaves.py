"""Functions of leaves, copies and conversions, locks."""

from __future__ import annotations

import torch

from leafpack._tree.common import NO_VALUE, TensorDict, ops, tensors_of
from leafpack._tree.contexts import remember
from leafpack._tree.interop import as_tree


def apply(
    self, fn, *others, batch_size=None, device=NO_VALUE, names=NO_VALUE, inplace=False, default=NO_VALUE,
    filter_empty=None, propagate_lock=False, call_on_nested=False, is_leaf=None, out=None,
):  # fmt: skip
    """A tree of what `fn` returns for each tensor (and those of `others` at its path); None drops the leaf.

    An exception of `fn` comes through as it is. With `inplace`, results are copied into the tensors that are there;
    with `out`, into those of that tree. `default` stands for what a tree of `others` does not have. With
    `call_on_nested` nodes are leaves too, as are those for whose class `is_leaf` is true.
    """
    options = (default, call_on_nested, is_leaf)
    result = _applied(self, fn, others, "none", batch_size, filter_empty, options)
    return _handed_over(self, result, inplace, out, device, names, propagate_lock)


def named_apply(
    self, fn, *others, nested_keys=False, batch_size=None, device=NO_VALUE, names=NO_VALUE, inplace=False,
    default=NO_VALUE, filter_empty=None, propagate_lock=False, call_on_nested=False, is_leaf=None, out=None,
):  # fmt: skip
    """apply whose function gets the name of the leaf first; with `nested_keys`, its path."""
    options = (default, call_on_nested, is_leaf)
    which = "path" if nested_keys else "last"
    result = _applied(self, fn, others, which, batch_size, filter_empty, options)
    return _handed_over(self, result, inplace, out, device, names, propagate_lock)


def apply_(self, fn, *others, **options):
    """apply in place."""
    return apply(self, fn, *others, inplace=True, **options)


_PLAIN = (NO_VALUE, False, None)


def _applied(self, fn, others, names, batch_size, filter_empty, options):
    if others:
        others = tuple(as_tree(other, self, "others") for other in others)
    if options == _PLAIN:
        return ops.apply(self, fn, others, names, batch_size, filter_empty)
    default, call_on_nested, is_leaf = options

    def whole(node):
        return call_on_nested or (is_leaf is not None and is_leaf(node.__class__))

    def walk(node, nodes, prefix):
        result = TensorDict(batch_size=node.batch_size if batch_size is None else batch_size)
        for key, value in ops.items(node, False, False):
            path = (*prefix, key)
            beside = [_beside(other, key, path, default) for other in nodes]
            is_node = isinstance(value, TensorDict)
            if is_node and not whole(value):
                below = [b if isinstance(b, TensorDict) else TensorDict() for b in beside]
                made = walk(value, below, path)
                lost = ops.is_empty(made) and not ops.is_empty(value)
                if lost if filter_empty is None else filter_empty and ops.is_empty(made):
                    continue
            elif is_node or isinstance(value, torch.Tensor):
                name = (
                    () if names == "none" else (key,) if names == "last" or not prefix else (path,)
                )
                made = fn(*name, value, *beside)
                if made is None:
                    continue
            else:
                made = value
            result._set(key, made)
        return result

    result = walk(self, others, ())
    if batch_size is None and any(self.names):
        ops.set_names(result, self.names)
    return result


def _beside(other, key, path, default):
    if key in other:
        return other._get(key)
    if default is NO_VALUE:
        raise KeyError(f"{path!r} is missing from one of the other trees, and no default is given")
    return default


def _handed_over(self, result, inplace, out, device, names, propagate_lock):
    if inplace or out is not None:
        target = self if out is None else out
        with torch.no_grad():
            ops.update_in_place(target, result, True)
        return target
    if device is not NO_VALUE:
        if device is None:
            ops.clear_device(result)
        else:
            result = ops.to(result, torch.device(device), None, False)
    if names is not NO_VALUE:
        ops.set_names(result, names)
    if propagate_lock and self.is_locked:
        ops.lock(result)
    return result


_DIMS = {torch.channels_last: 4, torch.channels_last_3d: 5}


def to(self, *args, **kwargs):
    """As torch.Tensor.to: a device, a dtype, or a tensor that has both; `non_blocking`, `memory_format`, `batch_size`.

    A tree in their place gives its device and its batch size. A memory format is of the tensors that have as many dimensions
    as it takes.
    """
    batch_size = kwargs.pop("batch_size", None)
    if len(args) == 1 and isinstance(args[0], TensorDict):
        device, batch_size = args[0].device, args[0].batch_size
        args = () if device is None else (device,)
    if args or kwargs:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    else:
        device, dtype, non_blocking, memory_format = None, None, False, None
    result = ops.to(self, device, dtype, non_blocking)
    if memory_format is not None:
        dims = _DIMS.get(memory_format)
        result = ops.apply(
            result,
            lambda leaf: leaf.to(memory_format=memory_format) if dims in (None, leaf.dim()) else leaf,
            (), "none", None, False,
        )  # fmt: skip
    if batch_size is not None:
        result = ops.apply(result, lambda leaf: leaf, (), "none", batch_size, False)
    return result


def _of_dtype(name, dtype):
    def method(self):
        return ops.to(self, None, dtype, False)

    method.__name__ = name
    method.__doc__ = f"All tensors as {dtype}."
    return method


def cpu(self):
    """In CPU memory."""
    return ops.to(self, torch.device("cpu"), None, False)


def cuda(self, device=None, *, non_blocking=False):
    """On a CUDA device, by default the current one."""
    if device is None:
        device = torch.cuda.current_device()
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return ops.to(self, device, None, non_blocking)


def clone(self, recurse=True):
    """A copy; without `recurse`, new nodes with the same tensors. It is not locked."""
    return ops.clone(self, recurse)


def copy(self):
    """New nodes with the same tensors."""
    return ops.clone(self, False)


def contiguous(self):
    """Tensors that are not contiguous are copied."""
    return ops.contiguous(self)


def detach(self):
    """Tensors over the same memory, without their history."""
    return ops.detach(self)


def zero_(self):
    """Fills all tensors with zeros."""
    ops.zero(self)
    return self


def requires_grad_(self, requires_grad=True):
    """Lets autograd follow all tensors, or no more."""
    ops.requires_grad(self, requires_grad)
    return self


def grad(self):
    """The gradients of the tensors; None where there is none."""
    return ops.grads(self)


def lock_(self):
    """Forbids changes of structure, here and below, in a `with` until its end. Values may be written."""
    remember(self, _nothing if self.is_locked else ops.unlock)
    ops.lock(self)
    return self


def _nothing(tree):
    pass


def unlock_(self):
    """Allows them again, in a `with` until its end. RuntimeError if a tree above is locked."""
    was_locked = self.is_locked
    ops.unlock(self)
    remember(self, ops.lock if was_locked else _nothing)
    return self


def type(self, dst_type):
    """All tensors as this dtype."""
    return ops.to(self, None, dst_type, False)


def is_contiguous(self):
    """Whether all tensors are."""
    return _every(self, torch.Tensor.is_contiguous)


def is_floating_point(self):
    """Whether all tensors are of a floating dtype."""
    return _every(self, torch.Tensor.is_floating_point)


def is_shared(self):
    """Whether all tensors are in memory that processes share."""
    leaves = tensors_of(self)
    return bool(leaves) and _every(self, torch.Tensor.is_shared)


def _every(self, question):
    for leaf in tensors_of(self):
        if not question(leaf):
            return False
    return True


def share_memory_(self):
    """Moves all tensors into memory that processes share, and locks the tree."""
    for leaf in tensors_of(self):
        leaf.share_memory_()
    return lock_(self)


def pin_memory(self):
    """Tensors in pinned memory."""
    return ops.apply(self, torch.Tensor.pin_memory, (), "none", None, None)


def detach_(self):
    """Cuts the history off all tensors."""
    for leaf in tensors_of(self):
        leaf.detach_()
    return self


def zero_grad(self, set_to_none=True):
    """Drops the gradients of all tensors, or fills them with zeros."""
    for leaf in tensors_of(self):
        if leaf.grad is not None:
            if set_to_none:
                leaf.grad = None
            else:
                leaf.grad.zero_()
    return self


def backward(self, *args, **kwargs):
    """backward of every tensor that has a history; gradients of a tree may be given as a tree."""
    gradients = args[0] if args else kwargs.pop("gradient", None)
    leaves = [
        (path, leaf)
        for path, leaf in ops.items(self, True, True)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    given = None if gradients is None else [gradients[path] for path, _ in leaves]
    torch.autograd.backward([leaf for _, leaf in leaves], given, **kwargs)


def data_ptr(self, *, storage=False):
    """The addresses of the tensors, or of their storages, as a tree of whole numbers."""
    result = TensorDict()
    for path, leaf in ops.items(self, True, True):
        if isinstance(leaf, torch.Tensor):
            result._set(path, leaf.untyped_storage().data_ptr() if storage else leaf.data_ptr())
    return result


def param_count(self, *, count_duplicates=True):
    """Number of elements of all tensors; without duplicates each tensor once."""
    leaves = tensors_of(self)
    if not count_duplicates:
        leaves = {id(leaf): leaf for leaf in leaves}.values()
    return sum(leaf.numel() for leaf in leaves)


def clear_device_(self):
    """Asks for no device any more."""
    ops.clear_device(self)
    return self


def _dtype(self):
    """The dtype of all tensors; None if they differ."""
    kinds = {leaf.dtype for leaf in tensors_of(self)}
    return kinds.pop() if len(kinds) == 1 else None


def _on(kind):
    def answer(self):
        device = ops.device(self)
        return device is not None and device.type == kind

    return property(answer, doc=f"Whether {kind} is where all tensors were asked to lie.")


_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "bool": torch.bool,
    **{
        name: getattr(torch, name)
        for name in (
            "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex32 complex64 complex128"
        ).split()
    },
}


METHODS = {
    function.__name__: function
    for function in (
        apply, named_apply, apply_, to, cpu, cuda, clone, copy, contiguous, detach, zero_, requires_grad_, lock_, unlock_,
        type, is_contiguous, is_floating_point, is_shared, share_memory_, pin_memory, detach_, zero_grad, backward,
        data_ptr, param_count, clear_device_,
    )
}  # fmt: skip
METHODS |= {name: _of_dtype(name, dtype) for name, dtype in _DTYPES.items()}
METHODS |= {
    "device": property(ops.device, doc="Where all tensors lie, if that was asked for."),
    "is_locked": property(ops.is_locked),
    "requires_grad": property(lambda self: any(leaf.requires_grad for leaf in tensors_of(self))),
    "grad": property(grad, doc=grad.__doc__),
    "data": property(ops.detach),
    "dtype": property(_dtype, doc=_dtype.__doc__),
    "is_cpu": _on("cpu"),
    "is_cuda": _on("cuda"),
    "is_meta": _on("meta"),
}
