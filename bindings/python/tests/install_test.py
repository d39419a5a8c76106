"""install(): tensordict's own methods on leafpack, against what they do without it."""

import pytest
import tensordict
import torch
import torch.distributed as dist
from tensordict import TensorDict

import leafpack
import trees

NAMES = (
    "all_reduce reduce broadcast all_gather scatter gather_and_stack send recv isend irecv init_remote "
    "from_remote_init"
).split()


@tensordict.tensorclass
class Data:
    x: torch.Tensor
    note: str


@pytest.fixture(params=("tensordict", "leafpack"))
def way(request):
    """Each test runs twice, with tensordict's own methods and with leafpack's: both must satisfy it."""
    if request.param == "leafpack":
        with leafpack.install():
            yield request.param
    else:
        yield request.param


def tree_of(rank, n=3):
    return TensorDict(
        {"a": torch.full((2, n), float(rank)), "b": {"c": torch.full((2,), rank)}}, batch_size=[2]
    )


def test_all_reduce(world, way):
    rank, size = world
    total = sum(range(size))
    tree = tree_of(rank)
    assert tree.all_reduce() is None
    assert tree["a"].unique().tolist() == [total] and tree["b", "c"].tolist() == [total] * 2
    tree = tree_of(rank)
    tree.all_reduce(dist.ReduceOp.MAX, group=dist.group.WORLD, bucket_bytes=1 << 20)
    assert tree["b", "c"].tolist() == [size - 1] * 2
    tree = tree_of(rank)
    works = tree.all_reduce(async_op=True)
    assert type(works) is list
    for work in works:
        work.wait()
    assert tree["a"].unique().tolist() == [total]
    with pytest.raises(ValueError):
        tree.all_reduce(bucket_bytes=0)


def test_reduce(world, way):
    rank, size = world
    tree = tree_of(rank)
    assert tree.reduce(0) is None
    if rank == 0:
        assert tree["a"].unique().tolist() == [sum(range(size))]
    tree = tree_of(rank)
    assert tree.reduce(size - 1, dist.ReduceOp.MAX, async_op=True) is None
    tree = tree_of(rank)
    works = tree.reduce(size - 1, async_op=True, return_premature=True)
    assert type(works) is list
    for work in works:
        work.wait()
    if rank == size - 1:
        assert tree["b", "c"].tolist() == [sum(range(size))] * 2


def test_broadcast(world, way):
    rank, size = world
    tree = tree_of(7) if rank == 0 else TensorDict()
    result = tree.broadcast(0)
    assert type(result) is TensorDict and result.batch_size == (2,)
    assert trees.same(result, tree_of(7))
    if rank == 0:
        assert result["a"].data_ptr() != tree["a"].data_ptr()
    else:
        assert tree.is_empty()


def test_broadcast_of_a_tensorclass(world, way):
    rank, size = world
    tree = Data(x=torch.full((2,), float(rank)), note=f"of {rank}", batch_size=[2])
    result = tree.broadcast(size - 1)
    assert type(result) is Data and result.note == f"of {size - 1}"
    assert result.x.tolist() == [size - 1] * 2
    if rank != size - 1:
        assert tree.x.tolist() == [rank] * 2


def test_all_gather(world, way):
    rank, size = world
    result = tree_of(rank, rank + 1).all_gather()
    assert type(result) is list and [type(tree) for tree in result] == [TensorDict] * size
    for other, tree in enumerate(result):
        assert trees.same(tree, tree_of(other, other + 1)) and tree.batch_size == (2,)


def test_scatter(world, way):
    rank, size = world
    sent = [tree_of(r, r + 1) for r in range(size)] if rank == size - 1 else None
    result = TensorDict().scatter(size - 1, sent)
    assert trees.same(result, tree_of(rank, rank + 1)) and result.batch_size == (2,)


def test_gather_and_stack(world, way):
    rank, size = world
    if size == 1:
        return
    dst = size - 1
    if rank == dst:
        rows = size - 1
        out = TensorDict(
            {"a": torch.zeros(rows, 2, 3), "b": {"c": torch.zeros(rows, 2, dtype=torch.int64)}},
            batch_size=[rows, 2],
        )
        address = out["a"].data_ptr()
        assert out.gather_and_stack(dst) is out
        assert out["a"].data_ptr() == address
        assert out["a"][:, 0, 0].tolist() == list(range(rows))
        assert out["b", "c"][:, 1].tolist() == list(range(rows))
    else:
        assert tree_of(rank).gather_and_stack(dst) is None


def test_gather_and_stack_with_a_cast(world, way):
    rank, size = world
    if size == 1:
        return
    if rank == 0:
        out = TensorDict({"a": torch.zeros(size - 1, 2)}, batch_size=[size - 1])
        out.gather_and_stack(0)
        assert out["a"].dtype == torch.float32 and out["a"][:, 0].tolist() == list(range(1, size))
    else:
        TensorDict({"a": torch.full((2,), rank)}).gather_and_stack(0)


@pytest.mark.parametrize("consolidated", (False, True))
def test_send_and_recv(world, way, consolidated):
    rank, size = world
    if size == 1 or rank > 1:
        return
    tree = tree_of(rank + 5)
    if consolidated:
        tree = tree.consolidate(metadata=True)
    if rank == 0:
        assert tree.send(1, init_tag=3, consolidated=consolidated) is None
        assert tree.isend(dst=1, consolidated=consolidated) == (None if consolidated else 1)
        works = tree.isend(1, return_early=True, consolidated=consolidated)
        for work in works:
            work.wait()
    else:
        got = tree.recv(0, init_tag=3, consolidated=consolidated)
        assert got == (None if consolidated else 4)
        assert trees.same(tree, tree_of(5))
        assert tree.irecv(src=0, consolidated=consolidated) is None
        works = tree.irecv(0, return_premature=True, consolidated=consolidated)
        assert type(works) is list
        for work in works:
            work.wait()
        assert trees.same(tree, tree_of(5))


def test_group_peers_and_tags(world, way):
    rank, size = world
    group = dist.new_group(list(range(size)))
    if size == 1 or rank > 1:
        return
    tree = tree_of(rank)
    if rank == 0:
        tree.send(group=group, group_dst=1, init_tag=10, pseudo_rand=True)
    else:
        tag = tree.recv(group=group, group_src=0, init_tag=10, pseudo_rand=True)
        assert tag == reference_tag(2, 10)
    for arguments in ({}, {"dst": 1, "group_dst": 1}, {"group_dst": 1}):
        with pytest.raises(ValueError):
            tree.send(**arguments)


def reference_tag(count, tag):
    from tensordict.utils import _int_generator

    tag -= 1
    for _ in range(count):
        tag = _int_generator(tag + 1)
    return tag


def test_init_remote(world, way):
    rank, size = world
    if size == 1:
        return
    if rank == 0:
        tree = Data(x=torch.ones(2), note="hello", batch_size=[2])
        tree.init_remote(dst=1)
        tree_of(3).init_remote(1)
    elif rank == 1:
        got = TensorDict.from_remote_init(src=0)
        assert type(got) is Data and got.note == "hello" and got.x.tolist() == [1, 1]
        assert trees.same(TensorDict.from_remote_init(0), tree_of(3))
    dist.barrier()
    if rank == 0:
        tree_of(4).init_remote(use_broadcast=True)
    else:
        got = TensorDict.from_remote_init(src=0, use_broadcast=True)
        assert trees.same(got, tree_of(4))


def test_lazy_stacks_and_params(world, way):
    rank, size = world
    stack = tensordict.lazy_stack([tree_of(rank), tree_of(rank)], 0)
    result = stack.all_gather()[size - 1]
    assert torch.equal(result["a"], torch.stack([tree_of(size - 1)["a"]] * 2))
    params = tensordict.TensorDictParams(TensorDict({"w": torch.full((2,), float(rank))}))
    params.all_reduce()
    assert params["w"].tolist() == [sum(range(size))] * 2


# With leafpack only.


def test_a_tree_that_differs_is_an_error(world):
    rank, size = world
    if size == 1:
        return
    with leafpack.install():
        tree = TensorDict({"a": torch.ones(2), str(rank): torch.ones(2)})
        with pytest.raises(leafpack.LayoutMismatchError):
            tree.all_reduce()
        assert tree_of(rank).all_reduce() is None


def test_sub_groups_by_rank_of_the_job(world):
    rank, size = world
    if size < 2:
        return
    members = list(range(1, size))
    group = dist.new_group(members)
    if rank == 0:
        return
    with leafpack.install():
        tree = tree_of(rank) if rank == size - 1 else TensorDict()
        assert trees.same(tree.broadcast(size - 1, group=group), tree_of(size - 1))
        sent = [tree_of(r) for r in members] if rank == 1 else None
        assert trees.same(TensorDict().scatter(1, sent, group=group), tree_of(rank))


def methods():
    return {name: getattr(tensordict.TensorDictBase, name) for name in NAMES}


def test_install_and_uninstall():
    own = methods()
    leafpack.uninstall()  # nothing to undo
    with leafpack.install() as installed:
        assert installed is not None
        inside = methods()
        assert all(inside[name] != own[name] for name in NAMES)
        leafpack.install()
        leafpack.uninstall()
        assert methods() == inside
    assert methods() == own
    leafpack.install()
    with pytest.raises(RuntimeError):
        with leafpack.install():
            raise RuntimeError
    leafpack.uninstall()
    assert methods() == own
