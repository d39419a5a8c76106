"""What a reduction must give, computed in one process from inputs that every rank knows of every rank.

All values are small whole numbers, so that no order of adding them rounds, in any dtype.
"""

import torch

BOOL = (torch.bool,)
INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
HALVES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = HALVES + (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = BOOL + INTEGERS + FLOATS + COMPLEX

OPS = ("sum", "product", "avg", "min", "max", "band", "bor", "bxor")


def allowed(op, dtype):
    """True if the op is defined for the dtype."""
    if op in ("sum", "product"):
        return True
    if op in ("avg", "premul_sum"):
        return dtype in FLOATS + COMPLEX
    if op in ("min", "max"):
        return dtype not in COMPLEX
    return dtype in BOOL + INTEGERS


def _wide(dtype):
    if dtype in BOOL:
        return torch.bool
    if dtype in INTEGERS:
        return torch.int64
    return torch.complex128 if dtype in COMPLEX else torch.float64


def _values(rank, numel, dtype, seed):
    """Element j of a rank in a wide dtype: 0, 1 or 2, with a sign where there is one."""
    j = torch.arange(numel)
    whole = (3 * j + 5 * rank + j * rank + seed) % 3
    if dtype in BOOL:
        return whole > 0
    if dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        return whole
    signed = torch.where((j + rank + seed) % 2 == 0, whole, -whole)
    if dtype in COMPLEX:
        return torch.complex(signed.double(), whole.double())
    return signed.to(_wide(dtype))


def leaf(rank, shape, dtype, seed=0):
    """The leaf of a rank."""
    numel = 1
    for size in shape:
        numel *= size
    return _values(rank, numel, dtype, seed).to(dtype).reshape(shape)


def reduced(op, size, shape, dtype, seed=0, factors=None):
    """The reduction of `leaf` over ranks 0 .. size - 1."""
    numel = 1
    for extent in shape:
        numel *= extent
    values = [_values(rank, numel, dtype, seed) for rank in range(size)]
    if op == "premul_sum":
        values = [value * factor for value, factor in zip(values, factors)]
    result = values[0].clone()
    for value in values[1:]:
        if dtype in BOOL:
            result = {
                "sum": torch.logical_or,
                "product": torch.logical_and,
                "min": torch.logical_and,
                "max": torch.logical_or,
                "band": torch.logical_and,
                "bor": torch.logical_or,
                "bxor": torch.logical_xor,
            }[op](result, value)
        elif op in ("sum", "avg", "premul_sum"):
            result = result + value
        elif op == "product":
            result = result * value
        elif op == "min":
            result = torch.minimum(result, value)
        elif op == "max":
            result = torch.maximum(result, value)
        elif op == "band":
            result = result & value
        elif op == "bor":
            result = result | value
        elif op == "bxor":
            result = result ^ value
    if op == "avg":
        # A quotient is rounded in the dtype that the sum is accumulated in.
        accumulated = result.to(torch.float32) if dtype in HALVES else result.to(dtype)
        result = accumulated / size
    return result.to(dtype).reshape(shape)


def same_bytes(a, b):
    """True if two tensors hold the same values, bit for bit (a zero has no sign here)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(_comparable(a), _comparable(b))


def _comparable(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return tensor.float()
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return tensor.to(torch.int64)
    return tensor
