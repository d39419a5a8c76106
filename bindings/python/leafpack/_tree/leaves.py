"""Functions of leaves, copies and conversions, locks."""

from __future__ import annotations

import torch

from leafpack._tree.common import ops, tensors_of
from leafpack._tree.interop import as_tree


def apply(self, fn, *others, batch_size=None, inplace=False, filter_empty=None):
    """A tree of what `fn` returns for each tensor (and those of `others` at its path); None drops the leaf.

    An exception of `fn` comes through as it is. With `inplace`, results are copied into the tensors that are there.
    """
    return _apply(self, fn, others, "none", batch_size, inplace, filter_empty)


def named_apply(
    self, fn, *others, nested_keys=False, batch_size=None, inplace=False, filter_empty=None
):
    """apply whose function gets the name of the leaf first; with `nested_keys`, its path."""
    names = "path" if nested_keys else "last"
    return _apply(self, fn, others, names, batch_size, inplace, filter_empty)


def apply_(self, fn, *others):
    """apply in place."""
    return _apply(self, fn, others, "none", None, True, None)


def _apply(self, fn, others, names, batch_size, inplace, filter_empty):
    others = tuple(as_tree(other, self, "others") for other in others)
    result = ops.apply(self, fn, others, names, batch_size, filter_empty)
    if not inplace:
        return result
    with torch.no_grad():
        ops.update_in_place(self, result, True)
    return self


def to(self, *args, **kwargs):
    """As torch.Tensor.to: a device, a dtype, or a tensor that has both; `non_blocking`."""
    device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
    return ops.to(self, device, dtype, non_blocking)


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
    """Forbids changes of structure, here and below. Values may be written."""
    ops.lock(self)
    return self


def unlock_(self):
    """Allows them again. RuntimeError if a tree above is locked."""
    ops.unlock(self)
    return self


_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "bool": torch.bool,
}


METHODS = {
    function.__name__: function
    for function in (
        apply, named_apply, apply_, to, cpu, cuda, clone, copy, contiguous, detach, zero_, requires_grad_, lock_, unlock_,
    )
}  # fmt: skip
METHODS |= {name: _of_dtype(name, dtype) for name, dtype in _DTYPES.items()}
METHODS |= {
    "device": property(ops.device, doc="Where all tensors lie, if that was asked for."),
    "is_locked": property(ops.is_locked),
    "requires_grad": property(lambda self: any(leaf.requires_grad for leaf in tensors_of(self))),
    "grad": property(grad, doc=grad.__doc__),
    "data": property(ops.detach),
}
