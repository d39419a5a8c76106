"""What each collective gives, on every kind of tree, against a reference, torch.distributed and tensordict."""

import os

import pytest
import tensordict
import torch
import torch.distributed as dist

import leafpack
import trees
from trees import KINDS, LARGE, SMALL, make, same

# Not under torch's FakeProcessGroup: what arrives there is leafpack's doing alone.
TORCH_MOVES = os.environ.get("TORCH_BACKEND") != "fake"

sizes = pytest.mark.parametrize("numel", (SMALL, LARGE), ids=("small", "large"))
kinds = pytest.mark.parametrize("kind", KINDS)
forms = pytest.mark.parametrize("async_op", (False, True), ids=("sync", "async"))


def value_of(rank):
    return rank + 1


def finish(result, async_op):
    """The result of a call in either form."""
    if not async_op:
        return result
    assert isinstance(result, leafpack.TreeWork)
    first = result.result()
    assert result.is_completed() and result.result() is first
    return first


def check_received(tree, kind, value, numel, note="n"):
    """Asserts that `tree` is the one of `make`, of the kind that comes out at a receiver."""
    expected = make(kind, value, numel, note)
    assert same(tree, expected), (tree, expected)
    if kind == "module":
        assert type(tree) is dict
    else:
        assert type(tree) is type(expected)
        assert trees.nodes(tree) == trees.nodes(expected)


def roots(size):
    return sorted({0, size - 1})


@forms
@sizes
@kinds
def test_broadcast_into_nothing(world, kind, numel, async_op):
    rank, size = world
    for root in roots(size):
        tree = make(kind, value_of(rank), numel) if rank == root else None
        result = finish(leafpack.broadcast(tree, root, async_op=async_op), async_op)
        if rank == root:
            assert result is tree
        else:
            check_received(result, kind, value_of(root), numel)


@forms
@sizes
@kinds
def test_broadcast_in_place(world, kind, numel, async_op):
    rank, size = world
    for root in roots(size):
        tree = make(kind, value_of(rank), numel)
        addresses = [leaf.data_ptr() for leaf in trees.tensors(tree)]
        result = finish(leafpack.broadcast(tree, src=root, async_op=async_op), async_op)
        assert result is tree
        assert same(tree, make(kind, value_of(root), numel))
        assert [leaf.data_ptr() for leaf in trees.tensors(tree)] == addresses


def test_broadcast_in_place_of_some_and_into_nothing_of_others(world):
    rank, size = world
    tree = make("dict", value_of(rank)) if rank % 2 == 0 else None
    result = leafpack.broadcast(tree, 0)
    assert same(result, make("dict", 1))


@pytest.mark.skipif(not TORCH_MOVES, reason="torch's own broadcast moves nothing here")
def test_broadcast_against_torch(world):
    rank, size = world
    for dtype in (torch.uint8, torch.int64, torch.float32, torch.float64):
        mine = torch.arange(1000).to(dtype) * value_of(rank)
        theirs = mine.clone()
        leafpack.broadcast({"x": mine}, size - 1)
        dist.broadcast(theirs, size - 1)
        assert torch.equal(mine, theirs)


def test_a_strided_receiver_keeps_what_lies_between(world):
    rank, size = world
    memory = torch.full((2000, 2), -1.0)
    tree = {"x": memory[:, 0]}
    if rank == 0:
        tree["x"].fill_(7)
    leafpack.broadcast(tree, 0)
    assert memory[:, 0].unique().tolist() == [7] and memory[:, 1].unique().tolist() == [-1]


def test_tied_leaves_stay_tied(world):
    rank, size = world
    weight = torch.full((300,), float(value_of(rank)))
    tree = {"a": weight, "b": {"t": weight.view(3, 100).t()}} if rank == 0 else None
    result = leafpack.broadcast(tree, 0)
    assert result["a"].unique().tolist() == [1]
    assert result["a"].untyped_storage().data_ptr() == result["b"]["t"].untyped_storage().data_ptr()


@forms
@sizes
def test_all_gather_of_trees_that_differ(world, numel, async_op):
    rank, size = world
    kind = KINDS[rank % len(KINDS)]
    result = leafpack.all_gather(make(kind, value_of(rank), numel, f"of {rank}"), async_op=async_op)
    result = finish(result, async_op)
    assert type(result) is list and len(result) == size
    for other, tree in enumerate(result):
        check_received(tree, KINDS[other % len(KINDS)], value_of(other), numel, f"of {other}")


@sizes
@kinds
def test_all_gather_and_gather(world, kind, numel):
    rank, size = world
    tree = make(kind, value_of(rank), numel)
    for result in (leafpack.all_gather(tree), leafpack.gather(tree, size - 1)):
        if result is None:
            assert rank != size - 1
            continue
        for other, received in enumerate(result):
            check_received(received, kind, value_of(other), numel)
        # The own one is a copy.
        mine = trees.tensors(tree)[0]
        assert trees.tensors(result[rank])[0].data_ptr() != mine.data_ptr() or mine.numel() == 0


@forms
@sizes
@pytest.mark.parametrize("joining", ("stack", "concat"))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("module",)])
def test_all_gather_joined(world, kind, joining, numel, async_op):
    rank, size = world
    if joining == "concat" and any(x.dim() == 0 for x in trees.tensors(make(kind, 1, numel))):
        with pytest.raises(ValueError, match="has no dimension to concatenate along"):
            finish(leafpack.all_gather_joined(make(kind, 1, numel), joining, async_op=async_op), async_op)
        return
    result = finish(
        leafpack.all_gather_joined(make(kind, value_of(rank), numel), joining, async_op=async_op), async_op
    )
    join = torch.stack if joining == "stack" else torch.cat
    own = [trees.leaves(make(kind, value_of(r), numel)) for r in range(size)]
    own = [[(path, leaf) for path, leaf in one if isinstance(leaf, torch.Tensor)] for one in own]
    got = [(path, leaf) for path, leaf in trees.leaves(result) if isinstance(leaf, torch.Tensor)]
    assert [path for path, _ in got] == [path for path, _ in own[0]]
    for index, (path, leaf) in enumerate(got):
        assert torch.equal(leaf, join([one[index][1] for one in own])), path
    if kind in ("tensordict", "tensorclass", "leafpack"):
        assert result.batch_size == ((size, 2) if joining == "stack" else (size * 2,))
    if kind == "tensordict":
        assert result.names == ([None, "time"] if joining == "stack" else ["time"])
        assert result["pair"].note == "n"


@forms
@pytest.mark.parametrize("joining", ("stack", "concat"))
def test_all_gather_joined_into_a_tree(world, joining, async_op):
    rank, size = world
    join = torch.stack if joining == "stack" else torch.cat
    for numel in (3, 50_000):
        expected = join([torch.full((numel, 2), float(r)) for r in range(size)])
        out = leafpack.TensorDict({"a": {"x": torch.empty_like(expected)}})
        place = out["a", "x"]
        result = finish(
            leafpack.all_gather_joined({"a": {"x": torch.full((numel, 2), float(rank))}}, joining, out, async_op=async_op),
            async_op,
        )
        assert result is out and out["a", "x"].data_ptr() == place.data_ptr()
        assert torch.equal(place, expected)
        if TORCH_MOVES and joining == "concat":
            theirs = torch.empty_like(expected)
            dist.all_gather_into_tensor(theirs, torch.full((numel, 2), float(rank)))
            assert torch.equal(place, theirs)


def test_all_gather_joined_refuses_what_does_not_fit(world):
    rank, size = world
    tree = {"a": {"x": torch.ones(2)}}
    for arguments, kind, text in (
        ({"joining": "stacked"}, ValueError, 'joining must be "stack" or "concat", not \'stacked\''),
        ({"joining": 1}, ValueError, 'joining must be "stack" or "concat", not 1'),
        ({"out": {"a": {"x": torch.ones(size, 3)}}}, ValueError, "a.x: is float32 .* in the tree to be written"),
        ({"out": {"b": torch.ones(size, 2)}}, ValueError, "b|a.x"),
        ({"out": 3}, ValueError, "is only in the tree to be written"),
    ):
        with pytest.raises((kind, leafpack.PeerRefusedError), match=f"all_gather(_joined)? on rank {rank}: .*({text}|refused)"):
            leafpack.all_gather_joined(tree, **arguments)
    with pytest.raises((ValueError, leafpack.PeerRefusedError)):
        leafpack.all_gather_joined({"x": torch.tensor(1.0)}, "concat")
    if size > 1:
        with pytest.raises(leafpack.LayoutMismatchError) as caught:
            leafpack.all_gather_joined({"x": torch.ones(2 + rank)})
        assert caught.value.path == "x"
        with pytest.raises(leafpack.LayoutMismatchError, match="joining"):
            leafpack.all_gather_joined(tree, "stack" if rank else "concat")
    assert leafpack.all_gather_joined(tree)["a"]["x"].shape == (size, 2)


@forms
def test_gather(world, async_op):
    rank, size = world
    for root in roots(size):
        result = leafpack.gather({"x": torch.full((rank + 1,), rank)}, root, async_op=async_op)
        result = finish(result, async_op)
        if rank == root:
            assert [tree["x"].tolist() for tree in result] == [[r] * (r + 1) for r in range(size)]
        else:
            assert result is None
    assert (leafpack.gather({}) is None) == (rank != 0)  # rank 0 of the job unless told otherwise


@forms
@sizes
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("module",)])
def test_gather_and_stack(world, kind, numel, async_op):
    rank, size = world
    result = leafpack.gather_and_stack(make(kind, value_of(rank), numel), size - 1, async_op=async_op)
    result = finish(result, async_op)
    if rank != size - 1:
        assert result is None
        return
    got = trees.leaves(result)
    for index, (path, leaf) in enumerate(got):
        alone = [trees.leaves(make(kind, value_of(r), numel))[index] for r in range(size)]
        assert all(other == path for other, _ in alone)
        if isinstance(leaf, torch.Tensor):
            assert torch.equal(leaf, torch.stack([other for _, other in alone])), path
        else:
            assert leaf == alone[0][1]
    if kind in ("tensordict", "tensorclass", "leafpack"):
        assert result.batch_size == (size, 2)
    if kind == "lazy":
        assert type(result) is tensordict.LazyStackedTensorDict and result.stack_dim == 1
    if kind == "tensordict":
        assert result.names == [None, "time"] and result["pair"].note == "n"


@forms
@sizes
@kinds
def test_scatter(world, kind, numel, async_op):
    rank, size = world
    for root in roots(size):
        for in_place in (False, True):
            sent = [make(kind, 10 * r + root, numel) for r in range(size)] if rank == root else None
            tree = make(kind, 99, numel) if in_place else None
            result = finish(
                leafpack.scatter(tree, sent, src=root, async_op=async_op), async_op
            )
            if in_place:
                assert result is tree and same(tree, make(kind, 10 * rank + root, numel))
            else:
                check_received(result, kind, 10 * rank + root, numel)


def test_scatter_of_trees_that_differ(world):
    rank, size = world
    sent = None
    if rank == 0:
        sent = [{"x": torch.full((100 * r,), r), f"only {r}": torch.ones(r)} for r in range(size)]
    result = leafpack.scatter(trees=sent)
    assert set(result) == {"x", f"only {rank}"}
    assert result["x"].tolist() == [rank] * (100 * rank)


@forms
@sizes
def test_all_to_all(world, numel, async_op):
    rank, size = world
    sent = [make(KINDS[(rank + r) % 7], 10 * rank + r, numel + r) for r in range(size)]
    result = finish(leafpack.all_to_all(sent, async_op=async_op), async_op)
    assert len(result) == size
    for other, tree in enumerate(result):
        check_received(tree, KINDS[(rank + other) % 7], 10 * other + rank, numel + rank)


@forms
@sizes
def test_reduce(world, numel, async_op):
    rank, size = world
    for root in roots(size):
        for op, expected in (("sum", sum(range(1, size + 1))), ("max", size)):
            tree = {"x": torch.full((numel,), float(value_of(rank))), "y": [torch.ones(3)]}
            theirs = tree["x"].clone()
            result = leafpack.reduce(tree, root, op, async_op=async_op)
            if async_op:
                assert result.result() is tree
            else:
                assert result is None
            dist.reduce(theirs, root, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)
            if rank == root:
                assert tree["x"].unique().tolist() == [expected]
                assert not TORCH_MOVES or torch.equal(tree["x"], theirs)
            else:
                assert tree["x"].unique().tolist() == [value_of(rank)]
                assert tree["y"][0].tolist() == [1.0] * 3


@forms
@sizes
def test_reduce_scatter(world, numel, async_op):
    rank, size = world
    sent = [{"x": torch.full((numel + r,), float(10 * rank + r))} for r in range(size)]
    result = finish(leafpack.reduce_scatter(sent, async_op=async_op), async_op)
    assert result is sent[rank]
    expected = sum(10 * r + rank for r in range(size))
    assert result["x"].shape == (numel + rank,) and result["x"].unique().tolist() == [expected]
    for other in range(size):
        if other != rank:
            assert sent[other]["x"].unique().tolist() == [10 * rank + other]


@pytest.mark.parametrize("length", (0, 1, 1000, 300_000))
def test_bytes(world, length):
    rank, size = world
    data = bytes([65 + rank]) * (length * (rank + 1))
    every = [bytes([65 + r]) * (length * (r + 1)) for r in range(size)]
    assert leafpack.all_gather_bytes(data) == every
    for root in roots(size):
        assert leafpack.broadcast_bytes(data if rank == root else None, root) == every[root]
        gathered = leafpack.gather_bytes(bytearray(data), root)
        assert gathered == (every if rank == root else None)
        sent = [memoryview(item) for item in every] if rank == root else None
        assert leafpack.scatter_bytes(sent, root) == every[rank]


def test_bytes_in_flight(world):
    rank, size = world
    every = [bytes([65 + r]) * (100_000 * r + 5) for r in range(size)]
    root = size - 1
    mine = bytearray(every[rank])
    works = [
        leafpack.all_gather_bytes(mine, async_op=True),
        leafpack.broadcast_bytes(mine if rank == root else None, root, async_op=True),
        leafpack.gather_bytes(mine, root, async_op=True),
        leafpack.scatter_bytes(every if rank == root else None, root, async_op=True),
    ]
    mine[:] = bytes(len(mine))  # was copied
    results = [work.result() for work in works]
    assert results == [every, every[root], every if rank == root else None, every[rank]]


def test_barrier(world):
    for _ in range(3):
        assert leafpack.barrier() is None
    leafpack.barrier(timeout=60, name="here")


def test_empty_trees(world):
    rank, size = world
    for kind in (dict, list, tensordict.TensorDict, leafpack.TensorDict):
        assert type(leafpack.broadcast(kind() if rank == 0 else None, 0)) is kind
        assert [type(tree) for tree in leafpack.all_gather(kind())] == [kind] * size


def test_sub_groups_and_both_ways_to_name_a_rank(world):
    rank, size = world
    members = list(range(size - 1, -1, -2))  # in an order of its own
    group = dist.new_group(members)
    if rank not in members:
        for call in (
            lambda: leafpack.broadcast({"x": torch.ones(1)}, members[0], group=group),
            lambda: leafpack.all_gather({}, group=group),
            lambda: leafpack.barrier(group=group),
            lambda: leafpack.all_gather_bytes(b"", group=group),
            lambda: leafpack.send({}, members[0], group=group),
        ):
            with pytest.raises(ValueError, match=f"rank {rank}"):
                call()
        return
    order = leafpack._groups.resolve(group).global_ranks
    for place, member in enumerate(order):
        for arguments in ({"src": member}, {"group_src": place}):
            tree = {"x": torch.ones(3)} if rank == member else None
            tree = {"x": torch.full((3,), float(rank))} if rank == member else None
            result = leafpack.broadcast(tree, **arguments, group=group)
            assert result["x"].tolist() == [member] * 3
        for arguments in ({"dst": member}, {"group_dst": place}):
            result = leafpack.gather({"x": torch.tensor(rank)}, **arguments, group=group)
            if rank == member:
                assert [tree["x"].item() for tree in result] == list(order)
            else:
                assert result is None


def test_several_async_calls_in_flight(world):
    rank, size = world
    works = []
    for i in range(5):
        numel = (SMALL, LARGE)[i % 2]
        works.append(leafpack.all_gather({"x": torch.full((numel,), i + rank)}, async_op=True))
        works.append(
            leafpack.broadcast({"x": torch.full((numel,), i)} if rank == 0 else None, 0, async_op=True)
        )
    for i in reversed(range(5)):
        assert works[2 * i + 1].result()["x"].unique().tolist() == [i]
        gathered = works[2 * i].result()
        assert [tree["x"].unique().tolist() for tree in gathered] == [[i + r] for r in range(size)]


def test_methods_of_leafpack_trees(world):
    rank, size = world
    tree = leafpack.TensorDict({"x": torch.full((3,), float(rank)), "s": "text"})
    assert [t["x"][0].item() for t in tree.all_gather()] == list(range(size))
    result = tree.broadcast(size - 1)
    assert type(result) is leafpack.TensorDict and result["x"].tolist() == [size - 1] * 3
    assert result["s"] == "text"
    tree.reduce(0)
    assert tree["x"].tolist() == [sum(range(size)) if rank == 0 else rank] * 3
    sent = [leafpack.TensorDict({"y": torch.tensor([r])}) for r in range(size)]
    assert tree.scatter(0, sent if rank == 0 else None)["y"].tolist() == [rank]


def test_stats_of_a_work(world):
    work = leafpack.all_gather({"x": torch.ones(LARGE), "s": "text"}, async_op=True)
    work.wait()
    stats = work.stats()
    assert stats["total"] >= 0 and stats["leaves"] >= 1
