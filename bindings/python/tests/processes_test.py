"""with, map, and trees of lists and modules, beside tensordict."""

import gc
import os
import sys
import types
import weakref

import pytest
import tensordict
import torch

import leafpack
from beside import OURS, THEIRS, assert_same, leaves_of, matrix


def trees(kind):
    return kind({"x": matrix(6, 2), "in": {"y": matrix(6)}}, [6])


def double(part):
    return part * 2


def rows(part):
    return part.sum(0).unsqueeze(0) if part.batch_dims else part


def only_late(part):
    return part if part["x"].max() > 3 else None


def noise(part):
    return type(part)({"r": torch.rand(part.batch_size)}, part.batch_size)


def threads(part):
    return part.apply(lambda leaf: torch.full_like(leaf, torch.get_num_threads()))


def fails(part):
    raise ArithmeticError("on purpose")


def dies(part):
    os._exit(3)


@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (double, {"num_workers": 2}),
        (double, {"num_workers": 1, "dim": -1}),
        (double, {"num_workers": 2, "chunksize": 4}),
        (double, {"num_workers": 2, "chunksize": 0}),
        (double, {"num_workers": 2, "num_chunks": 3}),
        (rows, {"num_workers": 2, "num_chunks": 3}),
        (only_late, {"num_workers": 2, "num_chunks": 6}),
    ],
)
def test_map_as_tensordict(fn, options):
    assert_same(trees(OURS).map(fn, **options), trees(THEIRS).map(fn, **options))


def test_map():
    tree = trees(OURS)
    out = OURS({"x": torch.zeros(6, 2), "in": {"y": torch.zeros(6)}}, [6])
    assert tree.map(double, num_workers=2, out=out) is out and out["x"].equal(tree["x"] * 2)
    parts = list(tree.map_iter(double, num_workers=2, chunksize=2))
    assert [p.batch_size[0] for p in parts] == [2, 2, 2] and parts[2]["x"].equal(tree["x"][4:] * 2)
    shuffled = list(tree.map_iter(double, num_workers=2, chunksize=1, shuffle=True))
    assert sorted(p["in", "y"].item() for p in shuffled) == (tree["in", "y"] * 2).tolist()
    numbers = tree.map(noise, num_workers=2, num_chunks=2, generator=torch.Generator().manual_seed(1))
    assert len(set(numbers["r"].tolist())) == 6
    assert (tree.map(threads, num_workers=1, worker_threads=1)["x"] == 1).all()
    assert tree.map(only_late, num_workers=1, num_chunks=1, dim=0).batch_size == (6,)
    assert (tree * 0).map(only_late, num_workers=1) is None
    with torch.multiprocessing.get_context("fork").Pool(1) as pool:
        assert tree.map(double, pool=pool, num_chunks=2)["x"].equal(tree["x"] * 2)
    with pytest.raises(ArithmeticError, match="on purpose"):
        tree.map(fails, num_workers=2)
    with pytest.raises(RuntimeError, match="died"):
        tree.map(dies, num_workers=2)
    for options in ({"dim": 1}, {"chunksize": 1, "num_chunks": 1}, {"num_workers": 0}, {"chunksize": -1}):
        with pytest.raises(ValueError):
            tree.map(double, **options)


def test_map_with_a_bar(monkeypatch):
    shown = []

    def bar(parts, total):
        for part in parts:
            shown.append(total)
            yield part

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=bar))
    tree = trees(OURS)
    assert tree.map(double, num_workers=1, num_chunks=3, pbar=True)["x"].equal(tree["x"] * 2)
    assert shown == [3, 3, 3]
    tree.map(double, num_workers=1)
    assert len(shown) == 3


def test_locks_hold_for_a_with():
    for tree in (trees(OURS), trees(THEIRS)):
        tree.lock_()
        with tree.unlock_() as inside:
            assert inside is tree and not tree.is_locked
            with tree.lock_():
                assert tree.is_locked
            assert not tree.is_locked
            tree["new"] = torch.ones(6)
        assert tree.is_locked
        with pytest.raises(RuntimeError):
            with tree.unlock_():
                raise RuntimeError("inside")
        assert tree.is_locked
    free = trees(OURS)
    with free.unlock_():
        pass
    assert not free.is_locked
    for wrong in (free, trees(OURS).lock_().clone()):
        with pytest.raises(RuntimeError, match="lock_"):
            with wrong:
                pass
    free.lock_()
    other = trees(OURS)
    with pytest.raises(RuntimeError, match="lock_"):
        with other:
            pass


def test_what_was_locked_last_is_not_kept():
    tree = trees(OURS).lock_().unlock_()
    leaf = weakref.ref(tree["x"])
    kept = weakref.ref(tree)
    del tree
    gc.collect()
    assert kept() is None and leaf() is None
    module = torch.nn.Linear(2, 3)
    OURS.from_module(module).detach().to_module(module)
    kept = weakref.ref(module)
    del module
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("inplace", [False, True])
def test_modules_get_their_tensors_back(inplace):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    before = [p.detach().clone() for p in module.parameters()]
    own = list(module.parameters())
    zeros = OURS.from_module(module).detach().clone().zero_()
    with zeros.to_module(module, inplace=inplace):
        assert not module[0].weight.any() and module(torch.ones(2, 2)).abs().sum() == 0
    assert all(a.equal(b) for a, b in zip(module.parameters(), before))
    assert all(a is b for a, b in zip(module.parameters(), own))


def test_modules_stacked():
    modules = [torch.nn.Linear(2, 3) for _ in range(3)]
    ours, theirs = OURS.from_modules(*modules), THEIRS.from_modules(*modules)
    assert ours.batch_size == theirs.batch_size == (3,) and ours.is_locked and theirs.is_locked
    for key in ("weight", "bias"):
        assert ours[key].equal(theirs[key]) and ours[key].requires_grad and ours[key].is_leaf
    modules[1].requires_grad_(False)
    assert not OURS.from_modules(*modules)["bias"].requires_grad
    lazy = OURS.from_modules(*modules, lazy_stack=True, lock=False)
    assert lazy.tensordicts[2]["weight"] is modules[2].weight and not lazy.is_locked
    with pytest.raises(ValueError):
        OURS.from_modules(modules[0], torch.nn.Linear(3, 3))
    with pytest.raises(ValueError):
        OURS.from_modules()


def test_lists():
    items = [{"a": torch.ones(2), "in": {"b": torch.zeros(1)}}, {"a": torch.zeros(2), "in": {"b": torch.ones(1)}}]
    assert_same(OURS.from_list(items), THEIRS.from_list(items))
    options = {"auto_batch_size": True, "batch_dims": 2}
    assert_same(OURS.from_list(items, **options), THEIRS.from_list(items, **options))
    ragged = [{"a": torch.ones(1)}, {"a": torch.ones(2)}]
    assert isinstance(OURS.from_list(ragged), leafpack.LazyStack)
    assert isinstance(OURS.from_list(items, lazy=True), leafpack.LazyStack)
    with pytest.raises(ValueError, match="a"):
        OURS.from_list(ragged, lazy=False)
    with pytest.raises(ValueError, match="empty"):
        OURS.from_list([])


@pytest.mark.parametrize("name", ["cat_tensors", "stack_tensors"])
@pytest.mark.parametrize("keep", [False, True])
def test_tensors_of_a_tree_together(name, keep):
    def run(kind):
        tree = kind({"a": matrix(2, 3), "b": matrix(2, 3), "in": {"c": matrix(2, 3)}}, [2])
        return getattr(tree, name)("a", ("in", "c"), out_key="out", dim=-1, keep_entries=keep)

    assert_same(run(OURS), run(THEIRS))
    tree = OURS({"a": matrix(2, 3), "b": matrix(2, 3)}, [2])
    assert getattr(tree, name)("a", "b", out_key="a", dim=1).keys() == ["a"]


def test_tensors_that_do_not_fit_together_change_nothing():
    tree = OURS({"a": matrix(2, 3), "b": matrix(2, 3)}, [2])
    for run in (
        lambda: tree.cat_tensors("a", "b", out_key="out"),  # [4, 3] does not begin with [2]
        lambda: tree.stack_tensors("a", "b", out_key=("a", "out"), dim=1),
        lambda: tree.cat_tensors("a", "none", out_key="out"),
    ):
        with pytest.raises((ValueError, KeyError)):
            run()
    assert tree.keys() == ["a", "b"]


@pytest.mark.parametrize(
    "options",
    [{}, {"padding_value": 7.0}, {"padding_side": "left"}, {"return_mask": True}, {"return_mask": "where"}],
)
def test_padded(options):
    def run(module, kind):
        items = [kind({"x": matrix(n, 2), "in": {"y": matrix(n)}}, []) for n in (1, 3, 2)]
        return module.pad_sequence(items, **options)

    ours, theirs = run(leafpack, OURS), run(tensordict, THEIRS)
    assert ours.batch_size == theirs.batch_size
    assert_same(leaves_of(ours), leaves_of(theirs))


def test_padded_batches_and_errors():
    ours = leafpack.pad_sequence([OURS({"x": torch.ones(n, 2)}, [n]) for n in (1, 3)])
    theirs = tensordict.pad_sequence([THEIRS({"x": torch.ones(n, 2)}, [n]) for n in (1, 3)])
    assert_same(ours, theirs)
    one = OURS({"x": torch.ones(1, 2), "s": "text"})
    assert leafpack.pad_sequence([one, one])["s"] == "text"
    other = OURS({"x": torch.ones(1, 2), "s": "other"})
    for items, options, text in (
        ([], {}, "no tree"),
        ([one, OURS({"x": torch.ones(1)})], {}, "keys"),
        ([one, other], {}, "plain"),
        ([OURS({"x": torch.ones(1, 2)}), OURS({"x": torch.ones(1, 3)})], {}, "x"),
        ([OURS({"x": torch.ones(1)})], {"pad_dim": 1}, "dimension"),
        ([one], {"padding_side": "up"}, "padding_side"),
    ):
        with pytest.raises(ValueError, match=text):
            leafpack.pad_sequence(items, **options)
    out = OURS({"x": torch.zeros(2, 3, 2)}, [2, 3])
    assert leafpack.pad_sequence([OURS({"x": torch.ones(n, 2)}, [n]) for n in (1, 3)], out=out) is out
    assert out["x"].sum() == 8


def test_trees_in_files_in_place(tmp_path):
    tree = trees(OURS)
    before = tree.clone()
    with pytest.raises(AttributeError, match="is_memmap"):
        tree.saved_path
    assert tree.memmap_(tmp_path / "a") is tree and tree.is_locked and tree.equal(before)
    assert tree.is_memmap() and tree.saved_path == tmp_path / "a" and tree["in"].saved_path == tmp_path / "a" / "in"
    assert OURS.load_memmap(tmp_path / "a").is_memmap() and not OURS.load_memmap(tmp_path / "a", mode="r").is_memmap()
    assert not before.is_memmap() and not tree.clone().is_memmap() and not tree[0].is_memmap()
    tree["x"].zero_()
    assert not OURS.load_memmap(tmp_path / "a", mode="r")["x"].any()
    with pytest.raises(RuntimeError, match="locked"):
        tree.memmap_(tmp_path / "b")
    zeros = before.memmap_like(tmp_path / "c")
    assert zeros.same_layout(before) and not zeros["x"].any()
    assert before.load_memmap_(tmp_path / "a") is before and not before["x"].any()
    before.dumps(tmp_path / "d")
    assert before.load_(tmp_path / "d").equal(tree)
