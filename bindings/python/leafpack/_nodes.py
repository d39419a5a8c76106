"""What a tensordict is beside its batch size and its children, as text, and the way back. Called from C++.

The text ("note") is JSON, or empty. It travels from rank to rank, so it is data and nothing else: a class
that it names is looked up among the modules that are imported already, and used only if it is a tensorclass
or a tensordict.
"""

from __future__ import annotations

import functools
import json
import sys

import torch

from leafpack import _C, _kinds
from leafpack._tensorclass import is_tensorclass
from leafpack._tree.lazy import LazyStack

_MAX_STACK_DIM = 64


def describe(node) -> tuple[tuple[int, ...], str, bool]:
    """Returns batch size and note of a tensordict, a stack, or what wraps one, and whether it is a stack."""
    note = {}
    classes = []
    kind, attribute, _ = _kinds.classify(type(node))
    while kind == _kinds.WRAPPER:
        classes.append(f"{type(node).__module__}:{type(node).__qualname__}")
        node = object.__getattribute__(node, attribute)
        kind, attribute, _ = _kinds.classify(type(node))
    if classes:
        note["class"] = classes
    if kind == _kinds.LEAFPACK or type(node) is LazyStack:
        note["leafpack"] = True
    if kind == _kinds.LAZY_STACK:
        note["stack"] = node.stack_dim
    elif kind == _kinds.LEAFPACK:
        if any(name is not None for name in node.names):
            note["names"] = node.names
    elif kind == _kinds.NON_TENSOR_STACK:
        note["values"] = node.stack_dim
    else:
        if node.device is not None:
            note["device"] = node.device.type
        names = getattr(node, "_td_dim_names", None)
        if names is not None and any(name is not None for name in names):
            note["names"] = list(names)
    return tuple(node.batch_size), _dump(note), "stack" in note or "values" in note


def with_batch_size(note: bytes, batch_size: tuple[int, ...]) -> str:
    """Returns a note that says the batch size too."""
    return _dump({**_parse(note), "batch": batch_size})


def _dump(note: dict) -> str:
    return json.dumps(note, separators=(",", ":")) if note else ""


@functools.lru_cache(maxsize=256)
def _parse(note: bytes) -> dict:
    parsed = json.loads(note) if note else {}
    if not isinstance(parsed, dict):
        raise ValueError("the note of a tensordict is no JSON object")
    return parsed


def build(
    note: bytes,
    batch_size: tuple[int, ...],
    children: dict,
    values: list,
    stacked: bool,
    lifted: bool = False,
    times: int = 1,
):
    """Returns the tensordict, stack or tensorclass with these children.

    `values` are the keys of those that are no tensors; `stacked` says that the keys are 0, 1, 2, ...;
    `lifted` that the batch has a dimension in front of those that the note was written for; `times` that
    the leaves are so many times as long in their first dimension, and `batch_size` in its first.
    """
    note = _parse(note)
    sizes = note.get("batch")
    if sizes is not None:
        if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes):
            raise ValueError(f"a tensordict has the batch size {sizes!r}")
        batch_size = (*batch_size[:1], *sizes) if lifted else _lengthened(tuple(sizes), times)
    if times != 1 and note.get("values") == 0:
        # The values are those of every rank.
        count = len(children)
        values = [key + turn * count for turn in range(times) for key in values]
        children = {key + turn * count: child for turn in range(times) for key, child in children.items()}
    if times != 1 and note.get("stack") == 0:
        # The first dimension of the leaves is the second of the stack.
        own = (batch_size[0] // times,) if batch_size else ()
        batch_size = (*own, *_lengthened(batch_size[1:], times))
    if lifted and note:
        note = dict(note)
        if isinstance(note.get("names"), list):
            note["names"] = [None, *note["names"]]
        for stack in ("stack", "values"):
            if isinstance(note.get(stack), int):
                note[stack] += 1
    if note.get("leafpack") is True:
        return _build_leafpack(note, batch_size, children, stacked)
    try:
        import tensordict
    except ImportError:
        return _C.TensorDict(children, batch_size)
    batch_size = torch.Size(batch_size)
    dim = note.get("stack", note.get("values"))
    if dim is not None:
        if type(dim) is not int or not 0 <= dim < min(_MAX_STACK_DIM, max(1, len(batch_size))):
            raise ValueError(f"a stack has the dimension {dim!r} of {len(batch_size)}")
        if children and not stacked:
            raise ValueError("the places of a stack are not 0, 1, 2, ...")
        result = _stack(tensordict, note, dim, batch_size, list(children.values()), values)
    elif stacked:
        raise ValueError("a tensordict has positions for keys")
    else:
        for key in values:
            children[key] = tensordict.NonTensorData(children[key], batch_size=batch_size)
        result = _tensordict(tensordict, note, batch_size, children, checked=sizes is None)
    for name in reversed(note.get("class", ())):
        result = _wrap(tensordict, name, result)
    return result


def _lengthened(sizes, times):
    return (sizes[0] * times, *sizes[1:]) if sizes else ()


def _build_leafpack(note, batch_size, children, stacked):
    """A LazyStack, or a tensorclass around it or around a leafpack.TensorDict."""
    dim = note.get("stack")
    if dim is not None:
        if type(dim) is not int or not 0 <= dim < min(_MAX_STACK_DIM, max(1, len(batch_size))):
            raise ValueError(f"a stack has the dimension {dim!r} of {len(batch_size)}")
        if not stacked:
            raise ValueError("the places of a stack are not 0, 1, 2, ...")
        result = LazyStack(*children.values(), stack_dim=dim)
    else:
        result = _C.TensorDict(children, batch_size)
        if note.get("names") is not None:
            result.names = note["names"]
    for name in reversed(note.get("class", ())):
        result = _wrap_leafpack(name, result)
    return result


def _wrap_leafpack(name, result):
    cls = _imported(name)
    return cls.from_tensordict(result) if is_tensorclass(cls) else result


def _tensordict(tensordict, note, batch_size, children, checked):
    device = note.get("device")
    device = torch.device("cpu") if device == "cpu" else None
    names = note.get("names")
    if names is not None and not (
        isinstance(names, list)
        and len(names) == len(batch_size)
        and all(name is None or isinstance(name, str) for name in names)
    ):
        raise ValueError("a tensordict has other names than dimensions")
    # Children were checked against a batch size of the description already; the public constructor would
    # check them again, at ten times the cost.
    unsafe = getattr(tensordict.TensorDict, "_new_unsafe", None) if checked else None
    if unsafe is None:
        return tensordict.TensorDict(children, batch_size=batch_size, device=device, names=names)
    return unsafe(
        source=children, batch_size=batch_size, device=device, names=names, nested=False
    )


def _stack(tensordict, note, dim, batch_size, items, values):
    if "values" in note:
        inner = batch_size[:dim] + batch_size[dim + 1 :]
        wanted = set(values)
        items = [
            tensordict.NonTensorData(item, batch_size=inner) if place in wanted else item
            for place, item in enumerate(items)
        ]
        return tensordict.NonTensorStack(*items, stack_dim=dim)
    if values:
        raise ValueError("a stack of tensordicts holds something else")
    if not items:
        return tensordict.TensorDict({}, batch_size=batch_size)
    return tensordict.lazy_stack(items, dim)


def _wrap(tensordict, name, result):
    """`result` in the class of this name, or as it is if this process does not know such a class."""
    cls = _imported(name)
    if not isinstance(cls, type):
        return result
    if _kinds.classify(cls)[0] != _kinds.WRAPPER:
        return result
    if issubclass(cls, tensordict.TensorDictParams):
        return cls(result)
    return cls.from_tensordict(result)


def _imported(name):
    """What has this name among the modules that are imported already."""
    if not isinstance(name, str):
        raise ValueError("a class has a name that is no text")
    module, _, qualname = name.partition(":")
    found = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found
