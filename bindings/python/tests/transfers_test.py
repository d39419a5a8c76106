"""send, recv, isend, irecv and batches of them between the ranks of one job."""

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
    with pytest.raises(leafpack.DeadlineError) as given_up:
        work.wait()
    assert given_up.value.ranks == ((rank + 1) % size,), given_up.value
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


def send_op(tree, peer=None, **arguments):
    return leafpack.P2POp(leafpack.isend, tree, peer, **arguments)


def recv_op(tree, peer=None, **arguments):
    return leafpack.P2POp(leafpack.irecv, tree, peer, **arguments)


def results(ops):
    works = leafpack.batch_isend_irecv(ops)
    assert [type(work) for work in works] == [leafpack.TreeWork] * len(ops)
    return [work.result() for work in works]


@sizes
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_around_a_ring(world, kind, numel):
    rank, size = world
    before, after = (rank - 1) % size, (rank + 1) % size
    tree, expected = make(kind, 99, numel), make(kind, before + 1, numel)
    into, nothing, new, sent = results(
        [
            recv_op(tree, before, tag=4),
            send_op(make(kind, rank + 1, numel), after),
            recv_op(None, group_peer=before),
            send_op(make(kind, rank + 1, numel), group_peer=after, tag=4, timeout=60),
        ]
    )
    assert nothing is None and sent is None
    assert into is tree and same(tree, expected)
    assert same(new, expected)
    if kind != "module":
        assert type(new) is type(expected) and trees.nodes(new) == trees.nodes(expected)


def test_batches_of_large_trees_cross(world):
    rank, size = world
    other, numel = rank ^ 1, 2_000_000  # more than what connections hold
    if other < size:
        received = [{"x": torch.empty(numel)} for _ in range(3)]
        # The sends first: one after the other they would wait for each other.
        ops = [send_op({"x": torch.full((numel,), float(10 * rank + i))}, other) for i in range(3)]
        ops += [recv_op(tree, other) for tree in received]
        results(ops)
        for i, tree in enumerate(received):
            assert tree["x"].unique().tolist() == [10 * other + i]
    dist.barrier()


def test_a_batch_of_tensors_as_with_torch(world):
    rank, size = world
    got = torch.empty(3, 4).t()  # not contiguous
    results([send_op(torch.full((4, 3), float(rank)), (rank + 1) % size), recv_op(got, (rank - 1) % size)])
    assert got.unique().tolist() == [(rank - 1) % size]


def test_a_batch_from_any_rank(world):
    rank, size = world
    if rank == 0:
        tree = {"x": torch.tensor(-1)}
        ops = [recv_op(None) for _ in range(size - 1)] + [recv_op(tree, tag=9)]
        *new, (into, source) = results(ops)
        assert sorted((r, got["x"].item()) for got, r in new) == [(r, r) for r in range(1, size)]
        assert into is tree and source == 1 and tree["x"].item() == 100
    else:
        ops = [send_op({"x": torch.tensor(rank)}, 0)]
        if rank == 1:
            ops.insert(0, send_op({"x": torch.tensor(100)}, 0, tag=9))
        assert set(results(ops)) == {None}
    dist.barrier()


def test_tags_and_order_of_a_batch(world):
    rank, size = world
    if rank == 0:
        results([send_op(torch.tensor(10 * tag + i), 1, tag=tag) for i in range(3) for tag in (5, -1)])
    elif rank == 1:
        got = results([recv_op(None, 0, tag=tag) for tag in (-1, 5) for _ in range(3)])
        assert [tree.item() for tree in got] == [-10, -9, -8, 50, 51, 52]
    dist.barrier()


def test_a_batch_of_a_group(world):
    rank, size = world
    group = leafpack.Group.around(None).new_group([size - 1, 0])  # group ranks are those of the job, sorted
    if rank in (0, size - 1):
        other = 1 - group.rank
        ops = [send_op({"x": torch.tensor(rank)}, group_peer=other, group=group)]
        ops.append(recv_op(None, group=group))
        _, (tree, source) = results(ops)
        assert source == tree["x"].item() == (size - 1 if rank == 0 else 0)
        mixed = [send_op({}, group.global_ranks[other], group=group), recv_op(None, (rank + 1) % size)]
        with pytest.raises(ValueError, match=rf"^batch_isend_irecv\[1\] on rank {rank}: .* one group"):
            leafpack.batch_isend_irecv(mixed)
    else:
        for ops in ([send_op({}, 0, group=group)], [send_op({}, 0), recv_op(None, 0, group=group)]):
            where = rf"^batch_isend_irecv\[{len(ops) - 1}\]"
            with pytest.raises(ValueError, match=rf"{where}.* rank {rank} is not a member"):
                leafpack.batch_isend_irecv(ops)
    dist.barrier()


def test_an_empty_batch(world):
    assert leafpack.batch_isend_irecv([]) == []


def test_a_bad_op_posts_none(world):
    rank, size = world
    after = (rank + 1) % size
    written = torch.ones(2, requires_grad=True) * 2
    meta = torch.ones(2, device="meta")
    for op, expected, words in (
        ("op", TypeError, "leafpack.P2POp"),
        (leafpack.P2POp(dist.isend, torch.ones(1), after), ValueError, "leafpack.isend or leafpack.irecv"),
        (send_op({}), ValueError, "give peer"),
        (send_op({}, rank), ValueError, f"rank {rank} cannot send to itself"),
        (recv_op(None, rank), ValueError, f"rank {rank} cannot receive from itself"),
        (send_op({}, 99), ValueError, "rank 99 is not a member"),
        (recv_op(None, -1), ValueError, "peer must be a rank, not -1"),
        (send_op({}, "0"), TypeError, "peer"),
        (send_op({}, 0, group_peer=0), ValueError, "peer and group_peer"),
        (send_op({"a": object()}, after), TypeError, "a"),
        (recv_op({"a": object()}, after), TypeError, "a"),
        (send_op({"a": torch.ones(1).expand(3)}, after), ValueError, "leaf a"),
        (send_op(leafpack.TensorDict({"a": torch.ones(1).expand(3)}), after), ValueError, "leaf a"),
        (recv_op({"a": torch.ones(1).expand(3)}, after), ValueError, "leaf a"),
        (recv_op({"a": written}, after), ValueError, "grad_fn"),
        (send_op({"a": meta}, after), leafpack.UnsupportedError, "leaf a is on meta"),
        (recv_op({"a": meta}), leafpack.UnsupportedError, "leaf a is on meta"),
        (send_op({}, after, tag="x"), TypeError, "tag"),
        (recv_op(None, after, timeout=0), ValueError, "timeout"),
        (recv_op(None, after, group=3), TypeError, "group"),
    ):
        tree = {"x": torch.tensor(-1)}
        good = [send_op({"x": torch.tensor(7)}, after), recv_op(tree, (rank - 1) % size)]
        for index in (0, 2):
            with pytest.raises(expected) as error:
                leafpack.batch_isend_irecv([*good[:index], op, *good[index:]])
            text = str(error.value)
            # The rank is that of the first op's group, which must be one.
            where = f" on rank {rank}" if index or "group must" not in text else ""
            assert text.startswith(f"batch_isend_irecv[{index}]{where}: "), text
            assert words in text, text
        if expected is leafpack.UnsupportedError:
            assert error.value.path == "a"
    # Were a send of those under way, it would come first now.
    dist.barrier()
    assert pass_round(world, {"x": torch.tensor(rank)}, None)["x"].item() == (rank - 1) % size
    assert tree["x"].item() == -1
    with pytest.raises(TypeError, match=rf"^batch_isend_irecv on rank {rank}: ops must be a list"):
        leafpack.batch_isend_irecv(good[0])


@sizes
def test_a_mismatch_in_a_batch(world, numel):
    """It ends that transfer, on both ranks, and none of the others."""
    rank, size = world
    other = rank ^ 1
    if other < size:
        trees_in = [{"a": torch.zeros(numel)} for _ in range(3)]
        ops = [recv_op(tree, other) for tree in trees_in]
        ops += [send_op({"a": torch.ones(numel + (i == 1))}, other) for i in range(3)]
        works = leafpack.batch_isend_irecv(ops)
        for i, work in enumerate(works):
            if i % 3 != 1:
                work.wait()
                continue
            with pytest.raises(leafpack.LayoutMismatchError) as error:
                work.wait()
            assert error.value.path == "a" and set(error.value.ranks) <= {rank, other}
        assert [tree["a"].unique().tolist() for tree in trees_in] == [[1], [0], [1]]
    dist.barrier()


def test_a_deadline_in_a_batch(world):
    rank, size = world
    late = {"x": torch.zeros(1)}
    works = leafpack.batch_isend_irecv(
        [
            recv_op(late, (rank - 1) % size, tag=1, timeout=0.3),
            recv_op(None, (rank - 1) % size),
            send_op({"x": torch.tensor(rank)}, (rank + 1) % size),
        ]
    )
    with pytest.raises(leafpack.DeadlineError) as error:
        works[0].wait()
    assert error.value.tree_unchanged and late["x"].item() == 0
    assert works[1].result()["x"].item() == (rank - 1) % size
    assert works[2].result() is None
    dist.barrier()


def test_a_batch_of_a_group_that_is_shut_down(world):
    rank, size = world
    group = leafpack.Group.around(None).new_group(list(range(size)), name="shut down")
    results([send_op({}, (rank + 1) % size, group=group), recv_op(None, (rank - 1) % size, group=group)])
    group.shutdown()
    with pytest.raises(RuntimeError, match=rf"^batch_isend_irecv on rank {rank}: .*shut down"):
        leafpack.batch_isend_irecv([send_op({}, (rank + 1) % size, group=group)])
    dist.barrier()


def test_ops_of_a_batch_print(world):
    op = send_op({"x": torch.ones(1)}, 1, tag=3)
    assert repr(op) == "leafpack.P2POp(isend of a dict, peer=1, tag=3)"
    assert repr(recv_op(None, group_peer=2)) == "leafpack.P2POp(irecv of None, group_peer=2, tag=0)"
