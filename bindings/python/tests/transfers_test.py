"""send, recv, isend and irecv between the ranks of one job."""

import pytest
import tensordict
import torch
import torch.distributed as dist

import leafpack
import trees
from trees import KINDS, LARGE, SMALL, make, same

sizes = pytest.mark.parametrize("numel", (SMALL, LARGE), ids=("small", "large"))


@pytest.fixture(autouse=True)
def needs_peers(world):
    if world[1] == 1:
        pytest.skip("a rank cannot send to itself")


def pass_round(world, tree, into, **arguments):
    """Sends to the next rank and receives from the one before; returns what came."""
    rank, size = world
    work = leafpack.isend(tree, (rank + 1) % size, **arguments)
    result = leafpack.recv(into, (rank - 1) % size, **arguments)
    assert work.result() is None
    return result


@sizes
@pytest.mark.parametrize("kind", KINDS)
def test_into_nothing_and_in_place(world, kind, numel):
    rank, size = world
    before = (rank - 1) % size
    result = pass_round(world, make(kind, rank + 1, numel), None)
    assert same(result, make(kind, before + 1, numel))
    if kind != "module":
        assert type(result) is type(make(kind, 0, numel))
        assert trees.nodes(result) == trees.nodes(make(kind, before + 1, numel))
    tree = make(kind, 99, numel)
    assert pass_round(world, make(kind, rank + 1, numel), tree) is tree
    assert same(tree, make(kind, before + 1, numel))


def test_from_any_rank(world):
    rank, size = world
    if rank == 0:
        got = {}
        for _ in range(size - 1):
            tree, source = leafpack.recv()
            got[source] = tree["x"].item()
        assert got == {r: r for r in range(1, size)}
    else:
        leafpack.send({"x": torch.tensor(rank)}, 0)
    dist.barrier()


def test_tags_and_order(world):
    rank, size = world
    if rank == 0:
        works = [
            leafpack.isend({"x": torch.tensor(10 * tag + i)}, 1, tag=tag)
            for i in range(3)
            for tag in (5, 7, -1)
        ]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (-1, 7, 5):
            for i in range(3):
                assert leafpack.recv(None, 0, tag=tag)["x"].item() == 10 * tag + i
    dist.barrier()


@sizes
def test_many_in_flight_both_ways(world, numel):
    rank, size = world
    other = rank ^ 1
    if other < size:
        received = [{"x": torch.empty(numel)} for _ in range(20)]
        works = [leafpack.irecv(tree, other, tag=i) for i, tree in enumerate(received)]
        works += [
            leafpack.isend({"x": torch.full((numel,), float(100 * rank + i))}, other, tag=i)
            for i in range(20)
        ]
        for work in works:
            work.wait()
            assert work.is_completed() and len(work) == 1
        for i, tree in enumerate(received):
            assert tree["x"].unique().tolist() == [100 * other + i]
    dist.barrier()


def test_results_of_irecv(world):
    rank, size = world
    if rank == 0:
        leafpack.send({"x": torch.ones(2)}, 1)
        leafpack.send({"x": torch.ones(2)}, 1)
    elif rank == 1:
        tree, source = leafpack.irecv().result()
        assert source == 0 and tree["x"].tolist() == [1, 1]
        work = leafpack.irecv(tree, group_src=0)
        assert work.result() is tree
    dist.barrier()


def test_beside_collectives_in_any_order(world):
    rank, size = world
    work = leafpack.isend({"x": torch.tensor(rank)}, (rank + 1) % size)
    tree = {"x": torch.ones(LARGE)}
    leafpack.all_reduce(tree)
    assert leafpack.recv(None, (rank - 1) % size)["x"].item() == (rank - 1) % size
    work.wait()
    assert tree["x"].unique().tolist() == [size]


@pytest.mark.parametrize(
    "other, words, path",
    (
        (lambda n: {"a": torch.ones(n + 1)}, ["a"], "a"),
        (lambda n: {"b": torch.ones(n)}, ["a", "b"], None),
        (lambda n: {"a": torch.ones(n), "more": torch.ones(1)}, ["more"], "more"),
        (lambda n: {"a": torch.ones(n, dtype=torch.int32)}, ["float32", "int32"], "a"),
        (lambda n: {}, ["a"], "a"),
        (lambda n: {"a": None}, ["a"], "a"),
    ),
    ids=("longer", "other key", "one key more", "dtype", "empty", "none"),
)
@sizes
def test_trees_that_differ(world, numel, other, words, path):
    rank, size = world
    for swap in (False, True):
        if rank > 1:
            continue
        tree = other(numel) if (rank == 0) == swap else {"a": torch.ones(numel)}
        before = trees.clone(tree)
        with pytest.raises(leafpack.LayoutMismatchError) as error:
            leafpack.send(tree, 1) if rank == 0 else leafpack.recv(tree, 0)
        for word in words:
            assert word in str(error.value), str(error.value)
        if path is not None:
            assert error.value.path == path
        assert set(error.value.ranks) <= {0, 1} and error.value.ranks
        assert trees.unchanged(tree, before)
        # The next one works.
        tree = {"x": torch.full((2,), float(rank))}
        leafpack.send(tree, 1) if rank == 0 else leafpack.recv(tree, 0)
        assert tree["x"].tolist() == [0, 0]
    dist.barrier()


def test_bad_arguments(world):
    rank, size = world
    for call, expected in (
        (lambda: leafpack.send({}), ValueError),
        (lambda: leafpack.send({}, rank), ValueError),
        (lambda: leafpack.send({}, 99), ValueError),
        (lambda: leafpack.send({}, "0"), TypeError),
        (lambda: leafpack.send({}, 0, group_dst=0), ValueError),
        (lambda: leafpack.send({"a": object()}, (rank + 1) % size), TypeError),
        (lambda: leafpack.send({"a": torch.ones(1).expand(3)}, (rank + 1) % size), ValueError),
        (lambda: leafpack.isend({}, (rank + 1) % size, tag="x"), TypeError),
        (lambda: leafpack.recv(None, 0, timeout=0), ValueError),
        (lambda: leafpack.irecv(None, 99), ValueError),
    ):
        with pytest.raises(expected) as error:
            call()
        assert f" on rank {rank}: " in str(error.value), str(error.value)
    with pytest.raises(ValueError, match=rf"^send 'a\\000b' on rank {rank}: rank 99 is not a member"):
        leafpack.send({}, 99, name="a\0b")
    pass_round(world, {"x": torch.ones(1)}, None)


def test_nobody_sends(world):
    rank, size = world
    with pytest.raises(leafpack.DeadlineError) as error:
        leafpack.recv({"x": torch.ones(1)}, (rank + 1) % size, timeout=0.3)
    assert error.value.tree_unchanged
    dist.barrier()
    pass_round(world, {"x": torch.ones(1)}, None)


def test_a_cancelled_receive(world):
    rank, size = world
    work = leafpack.irecv(None, (rank + 1) % size, tag=3)
    work.cancel()
    with pytest.raises(leafpack.Error):
        work.wait()
    dist.barrier()
    pass_round(world, {"x": torch.ones(1)}, None)


def test_methods_of_leafpack_trees(world):
    rank, size = world
    if rank == 0:
        tree = leafpack.TensorDict({"x": torch.ones(2), "s": "text"})
        tree.init_remote(1)
        tree["x"].add_(1)
        tree.send(1)
    elif rank == 1:
        tree = leafpack.TensorDict.from_remote_init(0)
        assert type(tree) is leafpack.TensorDict and tree["s"] == "text"
        assert tree["x"].tolist() == [1, 1]
        tree.recv(0)
        assert tree["x"].tolist() == [2, 2]
    dist.barrier()


def test_tensordicts_travel_whole(world):
    rank, size = world
    tree = tensordict.TensorDict(
        {"x": torch.ones(2, 3), "s": "text"}, batch_size=[2], names=["time"]
    )
    got = pass_round(world, tree, None)
    assert got.batch_size == (2,) and got.names == ["time"] and got["s"] == "text"
