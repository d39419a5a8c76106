"""leafpack.LazyStack beside tensordict.LazyStackedTensorDict."""

import copy
import pickle

import numpy as np
import pytest
import tensordict
import torch

import leafpack
from beside import OURS, THEIRS, assert_same, matrix


def _trees(kind, count=3):
    return [
        kind({"x": matrix(4, 2) + i, "in": {"y": matrix(4) * i}, f"own{i}": matrix(4)}, [4]) for i in range(count)
    ]


def _ragged(kind):
    return [kind({"x": matrix(n, 2), "s": matrix(3)}, []) for n in (1, 2, 3)]


def stacks(dim, make=_trees):
    return (
        leafpack.lazy_stack(make(OURS), dim),
        tensordict.lazy_stack(make(THEIRS), dim),
    )


def check(ours, theirs, where="result"):
    if isinstance(theirs, tensordict.LazyStackedTensorDict):
        assert isinstance(ours, leafpack.LazyStack), where
        assert ours.batch_size == theirs.batch_size and ours.stack_dim == theirs.stack_dim, where
        for i, pair in enumerate(zip(ours.tensordicts, theirs.tensordicts)):
            check(*pair, f"{where}: tree {i}")
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs):
            check(*pair, where)
    else:
        assert_same(ours, theirs, where)


def _filled(stack):
    stack[1] = 3.0
    return stack


# Name, function, dimensions of the stack.
CASES = [
    ("batch_size", lambda s: [s.batch_size, s.shape, s.ndim, s.dim(), s.numel(), len(s)], (0, 1)),
    ("keys", lambda s: sorted(s.keys()), (0, 1)),
    ("keys nested", lambda s: sorted(map(str, s.keys(True, True))), (0, 1)),
    ("contains", lambda s: ["x" in s, "own0" in s], (0, 1)),
    ("get", lambda s: s.get("x"), (0, 1)),
    ("get nested", lambda s: s["in", "y"], (0, 1)),
    ("get node", lambda s: s["in"], (0, 1)),
    ("get default", lambda s: s.get("own0", 5), (0, 1)),
    ("index int", lambda s: s[1], (0, 1)),
    ("index -1", lambda s: s[-1], (0, 1)),
    ("index slice", lambda s: s[1:], (0, 1)),
    ("index numpy", lambda s: s[np.array([2, 0])], (0, 1)),
    ("index numpy mask", lambda s: s[np.arange(len(s)) % 2 == 0], (0, 1)),
    ("index numpy number", lambda s: s[np.uint8(1)], (0, 1)),
    ("index uint8", lambda s: s[(torch.arange(len(s)) % 2).byte()], (0, 1)),
    ("index huge slice", lambda s: s[1 : 10**20], (0, 1)),
    ("index both", lambda s: s[1, 2], (0, 1)),
    ("index second", lambda s: s[:, 1], (0, 1)),
    ("index ellipsis", lambda s: s[..., 1], (0, 1)),
    ("index slices", lambda s: s[:2, 1:], (0, 1)),
    ("unbind", lambda s: s.unbind(0), (0, 1)),
    ("unbind 1", lambda s: s.unbind(1), (0, 1)),
    ("iter", lambda s: list(s), (0, 1)),
    ("split", lambda s: s.split(2, 0), (0, 1)),
    ("unsqueeze", lambda s: s.unsqueeze(0), (0, 1)),
    ("unsqueeze -1", lambda s: s.unsqueeze(-1), (0, 1)),
    ("permute", lambda s: s.permute(1, 0), (0, 1)),
    ("transpose", lambda s: s.transpose(0, 1), (0, 1)),
    ("contiguous", lambda s: s.select("x", "in").contiguous(), (0, 1)),
    ("set", lambda s: s.set("new", torch.ones(s.shape)), (0, 1)),
    ("set_", lambda s: s.set_("x", torch.zeros(*s.shape, 2)), (0, 1)),
    ("select", lambda s: s.select("x"), (0, 1)),
    ("apply", lambda s: s.apply(lambda x: x + 1), (0, 1)),
    ("apply two", lambda s: s.apply(lambda x, y: x - y, s.apply(lambda x: x * 2)), (0, 1)),
    ("+", lambda s: s + 1, (0, 1)),
    ("*", lambda s: s * s, (0, 1)),
    ("==", lambda s: (s == s).all(), (0, 1)),
    ("clone", lambda s: s.clone(), (0, 1)),
    ("to", lambda s: s.to(torch.float64), (0, 1)),
    ("del_", lambda s: s.del_("x"), (0, 1)),
    ("zero_", lambda s: s.zero_(), (0, 1)),
    ("fill", lambda s: _filled(s.select("x", "in")), (0,)),
    ("set index", lambda s: s.__setitem__(1, s[0].select("x", "in")), (0,)),
    ("torch.clone", torch.clone, (0, 1)),
    ("torch.unbind", lambda s: torch.unbind(s, 0), (0, 1)),
    ("torch.cat", lambda s: torch.cat([s, s], s.stack_dim), (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("run", "dim"), [pytest.param(f, d, id=f"{n}-{d}") for n, f, dims in CASES for d in dims]
)
def test_as_tensordict(run, dim):
    ours, theirs = stacks(dim)
    check(run(ours), run(theirs))
    check(ours, theirs, "the stack itself")


def test_shapes_and_keys_that_differ():
    ours, theirs = stacks(0, _ragged)
    assert ours.batch_size == theirs.batch_size == (3,)
    check(ours.get("s"), theirs.get("s"))
    with pytest.raises(ValueError, match=r"'x'.*\(1, 2\).*as_list"):
        ours.get("x")
    assert [t.shape[0] for t in ours.get("x", as_list=True)] == [1, 2, 3]
    with pytest.raises(ValueError, match="x"):
        ours.contiguous()
    assert (ours * 2)[2]["x"].shape == (3, 2)
    assert ours[torch.tensor([True, False, True])].batch_size == (2,)
    assert ours[[2, 0]][0]["x"].shape == (3, 2)


def test_handles_and_views():
    first, second = OURS({"x": torch.zeros(2)}, [2]), OURS({"x": torch.ones(2)}, [2])
    stack = leafpack.lazy_stack([first, second], 1)
    assert stack[:, 0].is_same(first) or stack[:, 0]["x"].data_ptr() == first["x"].data_ptr()
    value = torch.arange(4.0).reshape(2, 2)
    stack["y"] = value
    assert first["y"].untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    stack.append(second)
    assert stack.batch_size == (2, 3)
    with pytest.raises(ValueError, match="batch sizes"):
        stack.append(OURS(batch_size=[3]))


def test_dense_or_not():
    same = [OURS({"x": torch.ones(2)}, [2]), OURS({"x": torch.zeros(2)}, [2])]
    assert isinstance(OURS.maybe_dense_stack(same), OURS)
    other = [*same, OURS({"y": torch.ones(2)}, [2])]
    assert isinstance(OURS.maybe_dense_stack(other), leafpack.LazyStack)
    assert OURS.lazy_stack(same).contiguous().equal(torch.stack(same))
    back = torch.stack(same).to_lazystack(0)
    assert back.equal(OURS.lazy_stack(same))


def test_copies():
    stack = stacks(1)[0]
    for other in (pickle.loads(pickle.dumps(stack)), copy.deepcopy(stack)):
        assert other.equal(stack) and other.stack_dim == 1
        assert other.tensordicts[0]["x"].data_ptr() != stack.tensordicts[0]["x"].data_ptr()
    theirs = stack.to_tensordict()
    check(stack, theirs)


def test_wrong_calls():
    ours = stacks(0)[0]
    for run, error in (
        (lambda: leafpack.lazy_stack([]), ValueError),
        (lambda: leafpack.lazy_stack([1]), TypeError),
        (lambda: leafpack.lazy_stack([OURS(batch_size=[1]), OURS(batch_size=[2])]), ValueError),
        (lambda: leafpack.lazy_stack([OURS()], 2), ValueError),
        (lambda: ours[3], IndexError),
        (lambda: ours[0, 0, 0], IndexError),
        (lambda: ours["own0"], KeyError),
        (lambda: ours.set("x", torch.ones(2, 4)), ValueError),
        (lambda: bool(ours), RuntimeError),
        (lambda: ours.permute(0, 0), ValueError),
    ):
        with pytest.raises(error):
            run()


def test_the_trees_that_collectives_read():
    stack = stacks(0)[0]
    paths = [path for path, _ in leafpack._C.read_tree(stack)]
    assert (0, "in", "y") in paths and (2, "own2") in paths
    assert len(paths) == 9
