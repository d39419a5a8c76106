"""Trees of every kind for tests of the collectives, and how two of them are compared."""

import tensordict
import torch

import leafpack


@tensordict.tensorclass
class Pair:
    first: torch.Tensor
    note: str


@leafpack.tensorclass
class Sample:
    first: torch.Tensor
    note: str
    inner: leafpack.TensorDict = None


# Small trees travel with their digest, large ones through the backend.
SMALL, LARGE = 5, 40_000


def full(value, *shape, dtype=torch.float32):
    return torch.full(shape, value, dtype=dtype)


def make(kind, value, numel=SMALL, note="n"):
    """A tree of this kind whose tensors are filled with `value` (a small whole number)."""
    if kind == "tensor":
        return full(value, numel)
    if kind == "dict":
        return {
            "w": full(value, numel),
            "in": {"i": full(value, 3, dtype=torch.int16), 7: full(value, 0, 2)},
            "list": [full(value, dtype=torch.float64), (full(value, 2, dtype=torch.bfloat16), note)],
            "flag": full(bool(value % 2), 4, dtype=torch.bool),
            "count": 3,
            "nothing": {},
        }
    if kind == "leafpack":
        return leafpack.TensorDict(
            {"w": full(value, 2, numel), "in": {"s": note, "x": full(value, 2, 3)}}, batch_size=[2]
        )
    if kind == "module":
        module = torch.nn.Sequential(torch.nn.Linear(numel, 2), torch.nn.Linear(2, 1))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(value)
        return module
    if kind == "lazy":
        return tensordict.lazy_stack(
            [tensordict.TensorDict({"x": full(value, numel * n), "s": note}) for n in (1, 2)]
        )
    if kind == "tensorclass":
        return Pair(first=full(value, 2, numel), note=note, batch_size=[2])
    if kind == "own lazy":
        return leafpack.lazy_stack(
            [leafpack.TensorDict({"x": full(value, numel * n), "in": {"s": note}}) for n in (1, 2)]
        )
    if kind == "own tensorclass":
        inner = leafpack.TensorDict({"y": full(value, 2, 3)}, [2])
        return Sample(first=full(value, 2, numel), note=note, inner=inner, batch_size=[2], names=["time"])
    assert kind == "tensordict"
    return tensordict.TensorDict(
        {
            "w": full(value, 2, numel),
            "nested": {"a.b": full(value, 2, 3, dtype=torch.int64), "text": note},
            "pair": Pair(first=full(value, 2), note=note, batch_size=[2]),
            "stack": tensordict.NonTensorStack("p", "q"),
            "empty": tensordict.TensorDict({}, batch_size=[2, 3]),
        },
        batch_size=[2],
        names=["time"],
    )


KINDS = (
    "tensor", "dict", "leafpack", "module", "lazy", "tensorclass", "own lazy", "own tensorclass", "tensordict",
)  # fmt: skip


def leaves(tree):
    return leafpack._C.read_tree(tree, plain_values=True)


def tensors(tree):
    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def nodes(tree):
    return leafpack._C.describe_nodes(tree)


def same(a, b):
    """True if two trees have equal paths and leaves, to the bit."""
    a, b = leaves(a), leaves(b)
    if [path for path, _ in a] != [path for path, _ in b]:
        return False
    return all(_same_leaf(x, y) for (_, x), (_, y) in zip(a, b))


def _same_leaf(a, b):
    if type(a) is torch.nn.Parameter or type(b) is torch.nn.Parameter:
        a, b = a.detach(), b.detach()
    if type(a) is not type(b):
        return False
    if not isinstance(a, torch.Tensor):
        return a == b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def clone(tree):
    """The values of a tree now, for a later `same`."""
    return {
        index: (path, leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf)
        for index, (path, leaf) in enumerate(leaves(tree))
    }


def unchanged(tree, before):
    now = clone(tree)
    return now.keys() == before.keys() and all(
        now[i][0] == before[i][0] and _same_leaf(now[i][1], before[i][1]) for i in now
    )
