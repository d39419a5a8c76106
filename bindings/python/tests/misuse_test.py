"""Every way in which ranks can disagree, for every collective that it can meet: one error on every rank that
names the path and the ranks, nothing has changed, and the next call works."""

import pytest
import tensordict
import torch
import torch.distributed as dist

import leafpack
import trees

SMALL, LARGE = 3, 40_000


@pytest.fixture(autouse=True)
def needs_peers(world):
    if world[1] == 1:
        pytest.skip("one rank agrees with itself")


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


# Each row: the trees of the ranks that agree and of the one that does not, words of the error, its path.
ROWS = {
    "other key": (lambda n: {"k": ones(n), "k8": ones(n)}, lambda n: {"k": ones(n), "k9": ones(n)},
                  ["k8", "k9"], ("k8", "k9")),
    "one key more": (lambda n: {"a": ones(n)}, lambda n: {"a": ones(n), "extra": ones(n)},
                     ["extra"], ("extra",)),
    "shapes swapped": (lambda n: {"a": ones(2), "b": ones(3)}, lambda n: {"a": ones(3), "b": ones(2)},
                       ["a", "[2]", "[3]"], ("a",)),
    "equal bytes": (lambda n: {"a": ones(n, 2)}, lambda n: {"a": ones(2, n)}, ["a"], ("a",)),
    "one element more": (lambda n: {"a": ones(n)}, lambda n: {"a": ones(n + 1)},
                         ["a"], ("a",)),
    "other dtype of the same size": (lambda n: {"a": ones(n)}, lambda n: {"a": ones(n, dtype=torch.int32)},
                                     ["float32", "int32"], ("a",)),
    "empty tree on one": (lambda n: {"a": ones(n)}, lambda n: {}, ["a"], ("a",)),
    "nested and flat": (lambda n: {"a.b": ones(n)}, lambda n: {"a": {"b": ones(n)}}, ["a"], None),
    "position and name": (lambda n: {"a": [ones(n)]}, lambda n: {"a": {"0": ones(n)}}, ["a"], None),
    "other value": (lambda n: tensordict.TensorDict({"a": ones(n), "s": "one"}),
                    lambda n: tensordict.TensorDict({"a": ones(n), "s": "two"}), ["s", "one", "two"], ("s",)),
    "a value for a tensor": (lambda n: tensordict.TensorDict({"a": ones(n), "s": ones(1)}),
                             lambda n: tensordict.TensorDict({"a": ones(n), "s": "two"}), ["s"], ("s",)),
    "tied on one": (lambda n: {"a": ones(n), "b": ones(n)}, lambda n: dict.fromkeys("ab", ones(n)),
                    ["b"], ("b",)),
}  # fmt: skip


def others(tree, size, rank):
    """A tree for each rank, where the call takes a list: only the own place differs."""
    return [tree if r == rank else {"a": ones(1)} for r in range(size)]


# Collectives whose trees must have one layout. They get a tree of this rank, its rank and the number of ranks.
ALIKE = {
    "all_reduce": lambda tree, rank, size, **k: leafpack.all_reduce(tree, **k),
    "reduce": lambda tree, rank, size, **k: leafpack.reduce(tree, size - 1, **k),
    "broadcast": lambda tree, rank, size, **k: leafpack.broadcast(tree, 0, **k),
    "gather_and_stack": lambda tree, rank, size, **k: leafpack.gather_and_stack(tree, 0, **k),
    # The tree that differs is the one that goes to rank 0.
    "reduce_scatter": lambda tree, rank, size, **k: leafpack.reduce_scatter(
        [tree] + [{"a": ones(1)} for _ in range(size - 1)], **k
    ),
}
WITH_OP = ("all_reduce", "reduce", "reduce_scatter")


def any_error(call):
    """Calls; returns the error, which must be one that says that nothing has changed."""
    with pytest.raises(leafpack.Error) as error:
        call()
    assert error.value.tree_unchanged and not error.value.outcome_unknown, error.value
    return error.value


def check_usable(world):
    rank, size = world
    for numel in (SMALL, LARGE):
        tree = {"x": torch.full((numel,), float(rank + 1))}
        leafpack.all_reduce(tree)
        assert tree["x"].unique().tolist() == [size * (size + 1) / 2]
    assert leafpack.broadcast(dict(tree) if rank == 0 else None, 0)["x"].shape == (LARGE,)


def check_mismatch(world, tree, call, words, path=None):
    before = trees.clone(tree)
    error = any_error(call)
    assert isinstance(error, leafpack.LayoutMismatchError), repr(error)
    for word in words:
        assert word in str(error), str(error)
    if path is not None:
        assert error.path.split("]")[-1].lstrip(".") in path, error.path
    assert error.ranks and set(error.ranks) <= set(range(world[1])), error.ranks
    assert trees.unchanged(tree, before)
    check_usable(world)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("collective", ALIKE)
def test_trees_that_differ(world, collective, row):
    rank, size = world
    agree, differ, words, path = ROWS[row]
    if collective == "reduce_scatter":
        path = None  # what comes after a missing leaf is the next tree's
    for numel in (SMALL, LARGE):
        for who in (0, size - 1):
            tree = (differ if rank == who else agree)(numel)
            check_mismatch(
                world, tree, lambda: ALIKE[collective](tree, rank, size), words, path
            )


@pytest.mark.parametrize("row", ("one key more", "one element more", "other dtype of the same size"))
@pytest.mark.parametrize("who", (0, -1), ids=("root", "last"))
def test_a_scattered_tree_that_does_not_fit(world, row, who):
    rank, size = world
    agree, differ, words, path = ROWS[row]
    who %= size
    for numel in (SMALL, LARGE):
        sent = [(differ if r == who else agree)(numel) for r in range(size)] if rank == 0 else None
        tree = agree(numel)
        before = trees.clone(tree)
        with pytest.raises((leafpack.Error, ValueError)) as error:
            leafpack.scatter(tree, sent, 0)
        if rank == who == 0:  # what a rank finds wrong with its own arguments
            assert path[0] in str(error.value), str(error.value)
        else:
            assert error.value.ranks == (who,) and error.value.tree_unchanged, repr(error.value)
            assert path[0] in str(error.value), str(error.value)
        assert trees.unchanged(tree, before)
        check_usable(world)


@pytest.mark.parametrize("row", ROWS)
def test_trees_may_differ_where_each_is_new(world, row):
    rank, size = world
    agree, differ, _, _ = ROWS[row]
    for numel in (SMALL, LARGE):
        tree = (differ if rank == size - 1 else agree)(numel)
        expected = [(differ if r == size - 1 else agree)(numel) for r in range(size)]
        for result in (
            leafpack.all_gather(tree),
            leafpack.gather(tree, 0),
            leafpack.all_to_all([tree] * size),
        ):
            if result is not None:
                assert all(trees.same(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("collective", ALIKE)
def test_the_order_of_insertion_does_not_matter(world, collective):
    rank, size = world
    keys = ["a", "b", "c"] if rank == 0 else ["c", "b", "a"]
    tree = {key: torch.full((LARGE,), float(ord(key))) for key in keys}
    ALIKE[collective](tree, rank, size)
    for key in keys:
        assert len(tree[key].unique()) == 1 and tree[key][0].item() % ord(key) == 0


@pytest.mark.parametrize("collective", WITH_OP)
def test_other_arguments(world, collective):
    rank, size = world
    call = ALIKE[collective]
    for numel in (SMALL, LARGE):
        for one, other, words in (
            ({"op": "sum"}, {"op": "max"}, ["sum", "max"]),
            ({"bucket_bytes": 1024}, {"bucket_bytes": 2048}, ["bucket"]),
            ({"leaves": "all"}, {"leaves": "floating"}, []),
        ):
            tree = {"a": ones(numel)}
            arguments = one if rank == 0 else other
            check_mismatch(world, tree, lambda: call(tree, rank, size, **arguments), words)


@pytest.mark.parametrize("collective", ALIKE)
def test_another_name_of_the_call(world, collective):
    rank, size = world
    for numel in (SMALL, LARGE):
        tree = {"a": ones(numel)}
        name = "loss" if rank == 0 else "gradients"
        check_mismatch(
            world, tree, lambda: ALIKE[collective](tree, rank, size, name=name), ["loss", "gradients"]
        )


ROOTED = {
    "reduce": lambda tree, root: leafpack.reduce(tree, root),
    "broadcast": lambda tree, root: leafpack.broadcast(tree, root),
    "gather": lambda tree, root: leafpack.gather(tree, root),
    "gather_and_stack": lambda tree, root: leafpack.gather_and_stack(tree, root),
    "gather_bytes": lambda tree, root: leafpack.gather_bytes(b"x", root),
    "broadcast_bytes": lambda tree, root: leafpack.broadcast_bytes(b"x", root),
}


@pytest.mark.parametrize("collective", ROOTED)
def test_another_root(world, collective):
    rank, size = world
    tree = {"a": ones(LARGE)}
    root = 1 if rank == 0 else 0
    check_mismatch(world, tree, lambda: ROOTED[collective](tree, root), ["root"])


EVERY = {
    "all_reduce": leafpack.all_reduce,
    "reduce": lambda tree: leafpack.reduce(tree, 0),
    "broadcast": lambda tree: leafpack.broadcast(tree, 0),
    "all_gather": leafpack.all_gather,
    "gather": leafpack.gather,
    "gather_and_stack": leafpack.gather_and_stack,
    "barrier": lambda tree: leafpack.barrier(),
    "all_gather_bytes": lambda tree: leafpack.all_gather_bytes(b"x"),
}


@pytest.mark.parametrize("collective", list(EVERY)[1:])
def test_another_collective(world, collective):
    rank, size = world
    tree = {"a": ones(SMALL)}
    call = EVERY[collective] if rank == size - 1 else EVERY["all_reduce"]
    check_mismatch(world, tree, lambda: call(tree), [])


@pytest.mark.parametrize("collective", list(EVERY)[:6])
def test_leaves_that_nobody_can_take(world, collective):
    """One rank refuses its own leaf; the others learn who and why."""
    rank, size = world
    memory = ones(LARGE)
    bad = {
        "overlap": ({"a": memory[: LARGE // 2 + 1], "b": memory[LARGE // 2 :]}, "a"),
        "object": ({"a": {"b": object()}}, "a.b"),
        "csr": ({"a": {"s": torch.eye(3).to_sparse_csr()}}, "a.s"),
        "nested": ({"a": {"n": torch.nested.nested_tensor([ones(2), ones(3)])}}, "a.n"),
    }
    writes = collective in ("all_reduce", "broadcast")
    if writes or collective == "reduce":
        bad["expanded"] = ({"a": ones(1).expand(7)}, "a")
    for tree, path in bad.values():
        for who in (0, size - 1):
            mine = tree if rank == who else {"a": ones(SMALL)}
            before = ones(SMALL)
            if rank == who:
                with pytest.raises((ValueError, TypeError)) as error:
                    EVERY[collective](mine)
                assert str(error.value).startswith(f"{collective} on rank {rank}: "), str(error.value)
                assert error.value.path == path and path in str(error.value), repr(error.value)
            else:
                error = any_error(lambda: EVERY[collective](mine))
                assert isinstance(error, leafpack.PeerRefusedError), repr(error)
                assert error.ranks == (who,) and path in str(error)
                assert torch.equal(mine["a"], before)
            check_usable(world)


def test_leaves_without_a_tensor(world):
    """None (a gradient that does not exist) on one rank is a difference; a reduction refuses it on all."""
    rank, size = world
    for collective in ("broadcast", "gather_and_stack"):
        tree = {"a": ones(SMALL), "g": None if rank == size - 1 else ones(SMALL)}
        check_mismatch(world, tree, lambda: ALIKE[collective](tree, rank, size), ["g"], ("g",))
    for who in ((size - 1,), range(size)):
        tree = {"a": ones(SMALL), "g": None if rank in who else ones(SMALL)}
        for call in (leafpack.all_reduce, lambda tree: leafpack.reduce(tree, 0)):
            any_error(lambda: call(tree))
            check_usable(world)
    gathered = leafpack.all_gather({"g": None, "r": torch.tensor(rank)})
    assert [(tree["g"], tree["r"].item()) for tree in gathered] == [(None, r) for r in range(size)]


@pytest.mark.parametrize(
    "call, own_error",
    (
        (lambda: leafpack.broadcast({"a": ones(1)}), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, 0, group_src=0), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, "0"), TypeError),
        (lambda: leafpack.broadcast({"a": ones(1)}, True), TypeError),
        (lambda: leafpack.broadcast({"a": ones(1)}, -1), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, 99), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, group_src=99), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, 2**40), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, 0, timeout=-1), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, 0, name=3), TypeError),
        (lambda: leafpack.broadcast({"a": ones(1)}, 0, name="n" * 257), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, 0, check="never"), ValueError),
        (lambda: leafpack.broadcast({"a": ones(1)}, 0, async_op=torch.ones(2)), RuntimeError),
        (lambda: leafpack.broadcast({"a": {1, 2}}, 0), TypeError),
        (lambda: leafpack.reduce({"a": ones(1)}), ValueError),
        (lambda: leafpack.reduce({"a": ones(1)}, 0, "median"), ValueError),
        (lambda: leafpack.reduce({"a": ones(1)}, 0, bucket_bytes=0), ValueError),
        (lambda: leafpack.reduce({"a": ones(1)}, 0, stats=3), TypeError),
        (lambda: leafpack.reduce_scatter({"a": ones(1)}), TypeError),
        (lambda: leafpack.reduce_scatter([{"a": ones(1)}] * 9), ValueError),
        (lambda: leafpack.all_gather({"a": object()}), TypeError),
        (lambda: leafpack.all_to_all([{}] * 9), ValueError),
        (lambda: leafpack.all_to_all({}), TypeError),
        (lambda: leafpack.all_to_all(None), TypeError),
        (lambda: leafpack.gather({}, 1.5), TypeError),
        (lambda: leafpack.gather({}, 99), ValueError),
        (lambda: leafpack.scatter(trees=[{}] * 9, group_src=1), ValueError),
        (lambda: leafpack.scatter(trees=3, group_src=1), TypeError),
        (lambda: leafpack.scatter(group_src=1), ValueError),
        (lambda: leafpack.scatter(trees=[{}, {}], src=0), ValueError),
        (lambda: leafpack.all_gather_bytes("text"), TypeError),
        (lambda: leafpack.broadcast_bytes(None, 1), TypeError),
        (lambda: leafpack.scatter_bytes([b""] * 9, 1), ValueError),
        (lambda: leafpack.scatter_bytes([3, 4], 1), TypeError),
        (lambda: leafpack.barrier(timeout="soon"), TypeError),
    ),
    ids=range(35),
)
def test_bad_arguments(world, call, own_error):
    """On group rank 1: it raises its own error, and the others learn of it."""
    rank, size = world
    if rank == 1:
        with pytest.raises(own_error) as caught:
            call()
        # An exception of the user's own objects stays what it is.
        assert own_error is RuntimeError or " on rank 1: " in str(caught.value), str(caught.value)
    else:
        error = any_error(lambda: leafpack.all_reduce({"a": ones(1)}))
        assert isinstance(error, leafpack.PeerRefusedError), repr(error)
        assert error.ranks == (1,)
    check_usable(world)


def test_calls_that_have_no_such_argument(world):
    for call in (
        lambda: leafpack.barrier(async_op=True),
        lambda: leafpack.all_gather({}, src=0),
        lambda: leafpack.broadcast({}, 0, op="sum"),
    ):
        with pytest.raises(TypeError, match="unexpected keyword"):
            call()
    check_usable(world)


def test_names_are_escaped(world):
    rank, size = world
    error = any_error(lambda: leafpack.all_reduce({"a": ones(1)}, name=f"a\0{rank}"))
    assert r"all_reduce 'a\0000'" in str(error) or rank > 0, str(error)
    assert "\0" not in str(error) and r"a\0001" in str(error), str(error)
    with pytest.raises(ValueError) as refused:
        leafpack.reduce({"a": ones(1)}, 0, "su\0m", name="a\0")
    assert str(refused.value).startswith(rf"reduce 'a\000' on rank {rank}: op must be"), refused.value
    assert str(refused.value).endswith(r"not 'su\000m'"), refused.value
    check_usable(world)


@pytest.mark.parametrize("argument", ("name", "check", "op", "bucket_bytes", "data"))
def test_text_without_a_form_and_scattered_bytes(world, argument):
    rank, size = world
    start = f"all_reduce on rank {rank}: {argument} has no UTF-8 form"
    with pytest.raises(ValueError) as refused:
        if argument == "data":
            start = f"all_gather_bytes on rank {rank}: data must be contiguous"
            leafpack.all_gather_bytes(memoryview(b"abcdef")[::2])
        else:
            leafpack.all_reduce({"a": ones(1)}, **{argument: "\ud800"})
    assert type(refused.value) is ValueError
    assert str(refused.value).startswith(start), refused.value
    check_usable(world)


def test_two_named_async_calls_in_opposite_order(world):
    rank, size = world
    tree = {"a": ones(LARGE), "b": ones(LARGE)}
    names = ("first", "second") if rank == 0 else ("second", "first")
    works = [
        leafpack.all_reduce({name[0]: ones(LARGE)}, async_op=True, name=name) for name in names
    ]
    for work in works:
        error = any_error(work.wait)
        assert isinstance(error, leafpack.LayoutMismatchError)
        assert "first" in str(error) and "second" in str(error)
    assert tree["a"].unique().tolist() == [1]
    check_usable(world)


@pytest.mark.parametrize("collective", ("broadcast", "gather_and_stack", "all_gather", "reduce"))
def test_errors_of_async_calls(world, collective):
    rank, size = world
    call = {
        "broadcast": lambda: leafpack.broadcast({"a": ones(LARGE + rank)}, 0, async_op=True),
        "gather_and_stack": lambda: leafpack.gather_and_stack({"a": ones(3 + rank)}, async_op=True),
        "all_gather": lambda: leafpack.all_gather({}, async_op=True, name=str(rank)),
        "reduce": lambda: leafpack.reduce({"a": ones(LARGE + rank)}, 0, async_op=True),
    }[collective]
    work = call()
    for _ in range(2):
        with pytest.raises(leafpack.LayoutMismatchError):
            work.wait()
        with pytest.raises(leafpack.LayoutMismatchError):
            work.result()
    check_usable(world)


def test_the_users_own_collectives_are_not_disturbed(world):
    tensor = ones(4)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world[1]] * 4
