"""Operations on leafpack.LazyStack beside tensordict.LazyStackedTensorDict: the same elements, whatever holds them.

Where one of the two gives a dense tree and the other a stack, or stacks of other dimensions, what counts are the batch
size and the tree of each element.
"""

import copy
import json
import pickle

import pytest
import tensordict
import torch

import leafpack
from beside import OURS, THEIRS, assert_same, leaves_of, matrix

STACKS = (leafpack.LazyStack, tensordict.LazyStackedTensorDict)


def alike(kind):
    return [kind({"x": matrix(4, 2) + i, "in": {"y": matrix(4) * i}}, [4]) for i in range(3)]


def single(kind):
    return [kind({"x": matrix(1, 4, 2), "in": {"y": matrix(1, 4)}}, [1, 4])]


def ragged(kind):
    return [kind({"x": matrix(n, 2), "s": matrix(3) + n}, []) for n in (1, 2, 3)]


def deep(kind):
    stack = leafpack.lazy_stack if kind is OURS else tensordict.lazy_stack
    return [stack([tree, tree + 1], 1) for tree in alike(kind)]


MAKERS = {"alike": (alike, (0, 1)), "single": (single, (0, 1, 2)), "ragged": (ragged, (0,)), "deep": (deep, (0, 1, 2))}


def both(name, dim):
    make, _ = MAKERS[name]
    return leafpack.lazy_stack(make(OURS), dim), tensordict.lazy_stack(make(THEIRS), dim)


def elements(tree):
    """The trees of all places of a batch, the last dimension running fastest."""
    if not tree.batch_size:
        return [tree]
    return [element for part in tree.unbind(0) for element in elements(part)]


def check(ours, theirs, where="result"):
    if isinstance(theirs, (OURS, THEIRS, *STACKS)):
        assert isinstance(ours, (OURS, *STACKS)), where
        assert ours.batch_size == theirs.batch_size, where
        for i, (a, b) in enumerate(zip(elements(ours), elements(theirs))):
            assert_same(leaves_of(a), leaves_of(b), f"{where}: element {i}")
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs), where
        for i, pair in enumerate(zip(ours, theirs)):
            check(*pair, f"{where}[{i}]")
    else:
        assert_same(ours, theirs, where)


def mask(s):
    return (torch.arange(s.batch_size.numel()) % 3 != 1).reshape(s.batch_size)


def first_key(s):
    return "s" if "s" in s.keys() else "x"


def set_mask(s, value):
    s[mask(s)] = value
    return s


def set_part(s):
    s[:, 1:] = s[:, 1:] * 2
    return s


def grown(s):
    s.extend([tree.clone() for tree in s.tensordicts])
    return s


# Name, function, the stacks that it is for.
DENSE = ("alike", "single", "deep")
EVERY = (*DENSE, "ragged")
CASES = [
    ("sum", lambda s: s.sum(), DENSE),
    ("sum 0", lambda s: s.sum(0), DENSE),
    ("sum -1", lambda s: s.sum(-1), DENSE),
    ("sum keepdim", lambda s: s.sum(0, keepdim=True), DENSE),
    ("sum feature", lambda s: s.sum(dim="feature"), DENSE),
    ("mean", lambda s: s.mean(0), DENSE),
    ("prod", lambda s: s.prod(0), DENSE),
    ("std", lambda s: s.std(1), ("alike",)),
    ("max", lambda s: s.max(0), DENSE),
    ("amin", lambda s: s.amin(0), DENSE),
    ("cummax", lambda s: s.cummax(0), DENSE),
    ("logsumexp", lambda s: s.logsumexp(0), DENSE),
    ("quantile", lambda s: s.quantile(0.5, 0), ("alike",)),
    ("all 0", lambda s: (s > 1).all(0), DENSE),
    ("any", lambda s: (s > 1).any(), EVERY),
    ("norm", lambda s: s.norm(), DENSE),
    ("view -1", lambda s: s.view(-1), EVERY),
    ("view 1 more", lambda s: s.view(*s.shape, 1), EVERY),
    ("view 1 in front", lambda s: s.view(1, *s.shape), EVERY),
    ("view halves", lambda s: s.view(*s.shape[:-1], -1, 1), EVERY),
    ("reshape -1", lambda s: s.reshape(-1), EVERY),
    ("reshape 2", lambda s: s.reshape(2, -1), ("alike", "single", "deep")),
    ("flatten", lambda s: s.flatten(0, -1), EVERY),
    ("flatten two", lambda s: s.flatten(0, 1), DENSE),
    ("unflatten", lambda s: s.unflatten(0, (-1, 1)), EVERY),
    ("expand", lambda s: s.expand(2, *s.shape), EVERY),
    ("squeeze", lambda s: s.squeeze(), EVERY),
    ("squeeze 0", lambda s: s[:1].squeeze(0), EVERY),
    ("squeeze -1", lambda s: s.unsqueeze(-1).squeeze(-1), EVERY),
    ("squeeze none", lambda s: s.unsqueeze(0).unsqueeze(-1).squeeze(), EVERY),
    ("unsqueeze 1", lambda s: s.unsqueeze(1), EVERY),
    ("movedim", lambda s: s.movedim(0, -1), EVERY),
    ("movedim back", lambda s: s.movedim(-1, 0), EVERY),
    ("permute", lambda s: s.permute(*reversed(range(s.ndim))), EVERY),
    ("repeat", lambda s: s.repeat(*[2] * s.ndim), EVERY),
    ("repeat_interleave", lambda s: s.repeat_interleave(2, dim=0), EVERY),
    ("repeat_interleave -1", lambda s: s.repeat_interleave(3, dim=s.ndim - 1), EVERY),
    ("gather", lambda s: s.gather(0, torch.zeros(1, *s.shape[1:], dtype=torch.long)), DENSE),
    ("flip", lambda s: s.flip(0), DENSE),
    ("roll", lambda s: s.roll(1, 0), DENSE),
    ("masked_select", lambda s: s.masked_select(mask(s)), DENSE),
    ("masked_fill", lambda s: s.masked_fill(mask(s), 0.0), EVERY),
    ("where", lambda s: s.where(mask(s), s + 1), EVERY),
    ("torch.where", lambda s: torch.where(mask(s), s, s + 1), EVERY),
    ("clamp", lambda s: s.clamp(1, 2), EVERY),
    ("exp_", lambda s: s.exp_(), EVERY),
    ("log1p", lambda s: s.log1p(), EVERY),
    ("addcmul", lambda s: s.addcmul(s, s + 1, value=2.0), EVERY),
    ("maximum", lambda s: s.maximum(s * -1), EVERY),
    ("+ dense", lambda s: s + s.contiguous(), DENSE),
    ("state_dict", lambda s: dict(s.state_dict()), DENSE),
    ("to_dict", lambda s: s.to_dict(), DENSE),
    ("tolist", lambda s: s.tolist(), EVERY),
    ("consolidate", lambda s: s.consolidate(), EVERY),
    ("data", lambda s: s.data, EVERY),
    ("dtype", lambda s: s.dtype, EVERY),
    ("type", lambda s: s.type(torch.float64), EVERY),
    ("float64", lambda s: s.to(torch.float64), EVERY),
    ("is_contiguous", lambda s: s.is_contiguous(), EVERY),
    ("param_count", lambda s: s.param_count(), EVERY),
    ("setdefault", lambda s: s.setdefault(first_key(s), None), EVERY),
    ("extend", grown, EVERY),
    ("tensor_split", lambda s: s.tensor_split(2, 0), EVERY),
    ("narrow", lambda s: s.narrow(0, 0, 1), DENSE),
    ("new_zeros", lambda s: s.new_zeros(2), DENSE),
    ("zeros_like", torch.zeros_like, EVERY),
    ("full_like", lambda s: torch.full_like(s, 3.0), EVERY),
    ("fill_", lambda s: s.fill_(first_key(s), 1.0), EVERY),
    ("clear", lambda s: s.clear(), EVERY),
    ("get_at", lambda s: s.get_at(first_key(s), 0), EVERY),
    ("set_at_", lambda s: s.set_at_(first_key(s), torch.zeros(()), 0), EVERY),
    ("get_item_shape", lambda s: list(s.get_item_shape("x")), EVERY),
    ("replace", lambda s: s.replace({"x": s.get(first_key(s)) + 1}), EVERY),
    ("split_keys", lambda s: s.split_keys(["x"]), DENSE),
    ("rename", lambda s: s.rename(*"abc"[: s.ndim]).names, EVERY),
    ("index list", lambda s: s[[0, -1]], EVERY),
    ("index tensor", lambda s: s[torch.tensor([0, 0])], EVERY),
    ("index matrix", lambda s: s[torch.tensor([[0, 0], [0, -1]])], EVERY),
    ("index mask", lambda s: s[mask(s)], EVERY),
    ("index inner tensor", lambda s: s[:, torch.tensor([0, -1])], ("alike",)),
    ("index None", lambda s: s[None], EVERY),
    ("index ...", lambda s: s[..., -1:], EVERY),
    ("set mask", lambda s: set_mask(s, 5.0), EVERY),
    ("set part", set_part, ("alike", "deep")),
    ("stack of stacks", lambda s: s.lazy_stack([s, s + 1], 0), EVERY),
    ("stack of stacks, last", lambda s: s.lazy_stack([s, s + 1], -1), EVERY),
    ("torch.stack", lambda s: torch.stack([s, s + 1], 0), EVERY),
    ("torch.cat", lambda s: torch.cat([s, s + 1], 0), EVERY),
    ("torch.unbind", lambda s: torch.unbind(s, -1), EVERY),
    ("torch.reshape", lambda s: torch.reshape(s, (-1,)), ("alike",)),
    ("get", lambda s: s.get(first_key(s)), EVERY),
    ("keys", lambda s: sorted(map(str, s.keys(True, True))), EVERY),
    ("select", lambda s: s.select("x"), EVERY),
    ("apply", lambda s: s.apply(lambda x: x * 2), EVERY),
    ("contiguous", lambda s: s.contiguous(), DENSE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("run", "name", "dim"),
    [
        pytest.param(run, name, dim, id=f"{label}-{name}-{dim}")
        for label, run, names in CASES
        for name in names
        for dim in MAKERS[name][1]
    ],
)
def test_as_tensordict(run, name, dim):
    ours, theirs = both(name, dim)
    try:
        expected = run(theirs)
    except Exception as error:  # where tensordict cannot, ours does what the dense tree does
        check(run(ours), run(_dense(ours, error)))
        return
    check(run(ours), expected)
    check(ours, theirs, "the stack itself")


def _dense(ours, error):
    """What tells the right result where tensordict has none."""
    assert len({tuple(e["x"].shape) for e in elements(ours)}) == 1, f"nothing to compare with: {error!r}"
    return ours.contiguous()


def test_trees_that_differ_are_an_error_where_all_are_needed():
    ours, _ = both("ragged", 0)
    for run in (lambda: ours.sum(), lambda: ours.norm(), lambda: ours.flip(0), lambda: ours.state_dict()):
        with pytest.raises(ValueError, match="x"):
            run()


def test_views_are_views():
    ours, _ = both("alike", 1)
    storage = {tree["x"].untyped_storage().data_ptr() for tree in ours.tensordicts}
    views = (ours.view(-1), ours.expand(2, 4, 3), ours.unflatten(0, (2, 2)), ours[mask(ours)], ours.narrow(1, 0, 2))
    for view in views:
        assert {e["x"].untyped_storage().data_ptr() for e in elements(view)} <= storage
    ours.view(-1).zero_()
    assert not ours.contiguous()["x"].any()


def test_stacks_of_stacks():
    ours, _ = both("deep", 0)
    assert isinstance(ours.tensordicts[0], leafpack.LazyStack)
    assert ours.get("x").shape == (3, 4, 2, 2)
    assert len(ours.get("x", as_list=True)) == 6
    assert isinstance(ours["in"].tensordicts[0], leafpack.LazyStack)
    assert len(leafpack._C.read_tree(ours)) == 12
    for other in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert other.equal(ours)
    ours[1, 2, 0] = {"x": torch.zeros(2), "in": {"y": torch.zeros(())}}
    assert not ours.tensordicts[1].tensordicts[0]["x"][2].any()
    ours[:, :, 1] = 7.0
    assert (ours.tensordicts[2].tensordicts[1]["x"] == 7).all()
    ours["new"] = torch.arange(24.0).reshape(3, 4, 2)
    assert ours.tensordicts[2].tensordicts[1]["new"].tolist() == [17, 19, 21, 23]
    one = ours.consolidate()
    assert one.is_consolidated() and one.equal(ours) and not ours.is_consolidated()
    check(ours, ours.to_tensordict())


def test_names():
    ours, _ = both("alike", 1)
    ours.names = ["row", "tree"]
    assert ours.names == ["row", "tree"] and ours.tensordicts[0].names == ["row"]
    assert (ours + 1).names == ["row", "tree"]
    assert ours.permute(1, 0).names == ["tree", "row"]
    assert pickle.loads(pickle.dumps(ours)).names == ["row", "tree"]
    assert ours.rename(tree="other").names == ["row", "other"] and ours.names == ["row", "tree"]
    with pytest.raises(ValueError, match="row"):
        ours.names = ["row", "row"]
    with pytest.raises(ValueError, match="names"):
        ours.names = ["row"]


def test_state_dicts_go_back():
    ours, _ = both("alike", 1)
    state = {key: value * 2 for key, value in ours.state_dict().items()}
    expected = ours * 2
    assert ours.load_state_dict(state).equal(expected)
    with pytest.raises(KeyError, match="in.y"):
        ours.load_state_dict({"x": state["x"]})


def test_nested_tensors():
    ours, _ = both("ragged", 0)
    nested = ours.get_nestedtensor("x")
    assert nested.is_nested and [len(part) for part in nested.unbind()] == [1, 2, 3]


@pytest.mark.parametrize("name", MAKERS)
def test_folders_that_tensordict_reads_and_writes(name, tmp_path):
    for dim in MAKERS[name][1]:
        ours, theirs = both(name, dim)
        kept = ours.memmap(tmp_path / f"ours{dim}")
        assert kept.is_locked and kept.equal(ours)
        check(ours, tensordict.TensorDict.load_memmap(tmp_path / f"ours{dim}"))
        theirs.memmap(tmp_path / f"theirs{dim}")
        back = leafpack.TensorDict.load_memmap(tmp_path / f"theirs{dim}")
        assert isinstance(back, leafpack.LazyStack) and back.stack_dim == ours.stack_dim
        check(back, theirs)
        for tree in kept._dense_trees():
            tree.apply_(lambda leaf: leaf.zero_())
        again = leafpack.LazyStack.load_memmap(tmp_path / f"ours{dim}", mode="r")
        assert not any(tree["x"].any() for tree in again._dense_trees())
        assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_stacks_below_a_node_in_folders(tmp_path):
    def tree(kind, stack):
        trees = kind({"x": torch.ones(2, 3)}, [2]), kind({"x": torch.zeros(2, 4), "y": torch.ones(2)}, [2])
        result = kind({"a": torch.arange(2)}, [2])
        result["n"] = kind({"agents": stack(*trees, stack_dim=1)}, [2])
        return result

    theirs = tree(tensordict.TensorDict, tensordict.LazyStackedTensorDict)
    ours = tree(OURS, leafpack.LazyStack)
    assert ours["n", "agents", 1, "x"].shape == (2, 4)
    ours.memmap(tmp_path / "ours")
    back = tensordict.TensorDict.load_memmap(tmp_path / "ours")
    assert type(back["n", "agents"]) is tensordict.LazyStackedTensorDict
    assert back["n", "agents"].stack_dim == 1 and back["n", "agents"].batch_size == (2, 2)
    assert (back == theirs).all() and back["n", "agents"][:, 1]["x"].shape == (2, 4)
    theirs.memmap(tmp_path / "theirs")
    mine = OURS.load_memmap(tmp_path / "theirs")
    assert mine.equal(ours)
    mine["n", "agents", 0, "x"].fill_(7)
    assert tensordict.TensorDict.load_memmap(tmp_path / "theirs")["n", "agents"][:, 0]["x"].eq(7).all()
    # The tree and what was set below it are one: a stack is no copy.
    first = OURS({"x": torch.ones(2)}, [2])
    ours["s"] = leafpack.LazyStack(first, OURS({"x": torch.ones(2)}, [2]), stack_dim=1)
    assert ours["s", 0].is_same(first)


def test_a_stack_along_a_batch_dimension_in_a_folder_is_one_tree(tmp_path):
    parts = [tensordict.TensorDict({"x": torch.full((3,), i), "n": {"s": "same"}}, [3]) for i in range(2)]
    theirs = tensordict.TensorDict({"l": tensordict.LazyStackedTensorDict(*parts, stack_dim=0)}, [2])
    theirs.memmap(tmp_path / "theirs")
    mine = OURS.load_memmap(tmp_path / "theirs")
    assert mine["l"].batch_size == (2, 3) and mine["l", "x"].equal(theirs["l", "x"])
    mine.memmap(tmp_path / "ours")
    assert (tensordict.TensorDict.load_memmap(tmp_path / "ours")["l"] == theirs["l"]).all()
    with pytest.raises(ValueError, match="batch size"):
        OURS.from_tensordict(theirs)
    assert OURS.from_tensordict(theirs.contiguous())["l", "x"].equal(mine["l", "x"])
    uneven = tensordict.TensorDict({"x": torch.ones(3, 5)}, [3])
    theirs["l"] = tensordict.LazyStackedTensorDict(parts[0], uneven, stack_dim=0)
    theirs.memmap(tmp_path / "uneven")
    with pytest.raises(leafpack.UnsupportedError, match="l: the trees stand along dimension 0.* cannot be one tree"):
        OURS.load_memmap(tmp_path / "uneven")


def test_values_for_each_element_in_folders(tmp_path):
    theirs = torch.stack([tensordict.TensorDict({"s": word, "x": torch.ones(1)}) for word in ("a", "b")])
    theirs.memmap(tmp_path / "theirs")
    mine = OURS.load_memmap(tmp_path / "theirs")
    assert mine["s", 0] == "a" and mine["s", 1] == "b" and mine.equal(OURS.from_tensordict(theirs))
    mine.memmap(tmp_path / "ours")
    back = tensordict.TensorDict.load_memmap(tmp_path / "ours")
    assert back.get("s").tolist() == ["a", "b"] and back["x"].equal(theirs["x"])


def test_folders_that_are_not_whole(tmp_path):
    ours, _ = both("alike", 0)
    folder = tmp_path / "stack"
    ours.memmap(folder)
    with pytest.raises(FileExistsError):
        ours.memmap(folder, existsok=False)
    ours.lazy_stack(ours.tensordicts[:2]).memmap(folder)  # takes the place of the other
    assert len(leafpack.TensorDict.load_memmap(folder).tensordicts) == 2
    (folder / "1").rename(folder / "7")
    with pytest.raises(ValueError, match="folders"):
        leafpack.TensorDict.load_memmap(folder)
    (folder / "7").rename(folder / "1")
    meta = json.loads((folder / "meta.json").read_text())
    for dim in (None, "0", 5, True):
        (folder / "meta.json").write_text(json.dumps({**meta, "stack_dim": dim}))
        with pytest.raises(ValueError, match=str(folder)):
            leafpack.TensorDict.load_memmap(folder)
    before = sorted(p.name for p in tmp_path.iterdir())
    bad = leafpack.lazy_stack([OURS({"shape": torch.ones(1)}), OURS({"shape": torch.ones(1)})])
    with pytest.raises(ValueError, match="shape"):
        bad.memmap(tmp_path / "bad")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_wrong_calls():
    ours, _ = both("alike", 0)
    for run, error in (
        (lambda: ours.view(5), ValueError),
        (lambda: ours.view(-1, -1), ValueError),
        (lambda: ours.unflatten(0, (2, 2)), ValueError),
        (lambda: ours.expand(2, 4), ValueError),
        (lambda: ours.expand(3), ValueError),
        (lambda: ours.flatten(1, 0), ValueError),
        (lambda: ours.repeat(2), ValueError),
        (lambda: ours.narrow(0, 2, 2), ValueError),
        (lambda: ours[torch.ones(3, 3, dtype=torch.bool)], IndexError),
        (lambda: ours[[0], [0]], IndexError),
        (lambda: ours[True], TypeError),
        (lambda: ours.__setitem__(slice(None), torch.ones(3)), ValueError),
        (lambda: ours.masked_fill(torch.ones(4, dtype=torch.bool), 0), ValueError),
        (lambda: ours.load_state_dict({}, assign=True), ValueError),
        (lambda: ours.movedim((0, 0), (0, 1)), ValueError),
        (lambda: ours.extend([OURS(batch_size=[9])]), ValueError),
    ):
        with pytest.raises(error):
            run()
    assert len(ours.tensordicts) == 3
