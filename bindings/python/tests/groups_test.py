"""Groups of torch.distributed and of leafpack, alone and beside each other."""

import threading

import pytest
import torch
import torch.distributed as dist

import leafpack


def _check(group, members, rank):
    for numel in (3, 40_000):
        tree = {"x": torch.full((numel,), float(rank))}
        leafpack.all_reduce(tree, group=group)
        assert tree["x"].unique().tolist() == [sum(members)]


def test_default_group_by_name(world):
    for group in (None, dist.group.WORLD):
        _check(group, range(world[1]), world[0])


def test_sub_groups(world):
    rank, size = world
    for members in ([0], list(range(size)), list(range(size - 1, -1, -1)), list(range(0, size, 2))):
        group = dist.new_group(members)
        if rank in members:
            _check(group, members, rank)


def test_errors_name_ranks_of_the_job(world):
    rank, size = world
    if size < 3:
        pytest.skip("needs a group that is not the whole job")
    members = list(range(1, size))
    group = dist.new_group(members)
    if rank == 0:
        return
    tree = {"a" if rank == size - 1 else "b": torch.ones(1)}
    with pytest.raises(leafpack.LayoutMismatchError) as error:
        leafpack.all_reduce(tree, group=group)
    assert 0 not in error.value.ranks and size - 1 in error.value.ranks


def test_two_groups_by_turns(world):
    rank, size = world
    everyone = list(range(size))
    groups = [dist.new_group(everyone) for _ in range(2)]
    works = []
    trees = []
    for i in range(10):
        trees.append({"x": torch.full((1 + 9000 * (i % 2),), float(i))})
        works.append(leafpack.all_reduce(trees[-1], group=groups[i % 2], async_op=True))
    for work in works:
        work.wait()
    for i, tree in enumerate(trees):
        assert tree["x"].unique().tolist() == [i * size]


def test_two_threads_on_two_groups(world):
    rank, size = world
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    failures = []

    def work(group, start):
        try:
            for i in range(start, start + 30):
                tree = {"x": torch.full((1 + 6000 * (i % 2),), float(i))}
                leafpack.all_reduce(tree, group=group)
                assert tree["x"].unique().tolist() == [i * size]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(g, 100 * k)) for k, g in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_the_users_own_collectives_in_between(world):
    rank, size = world
    tensors = [torch.full((5000,), float(i)) for i in range(6)]
    trees = [{"x": torch.full((20_000,), float(i))} for i in range(3)]
    works = [dist.all_reduce(tensors[0], async_op=True)]
    works.append(leafpack.all_reduce(trees[0], async_op=True))
    works.append(dist.all_reduce(tensors[1], async_op=True))
    leafpack.all_reduce(trees[1])
    dist.all_reduce(tensors[2])
    works.append(dist.all_reduce(tensors[3], async_op=True))
    works.append(leafpack.all_reduce(trees[2], async_op=True))
    dist.broadcast(tensors[4], src=0)
    works.append(dist.all_reduce(tensors[5], async_op=True))
    for work in works:
        work.wait()
    for i in (0, 1, 2, 3, 5):
        assert tensors[i].unique().tolist() == [i * size]
    for i, tree in enumerate(trees):
        assert tree["x"].unique().tolist() == [i * size]


def test_the_users_collectives_after_a_mismatch(world):
    rank, size = world
    if size > 1:
        with pytest.raises(leafpack.LayoutMismatchError):
            leafpack.all_reduce({"x": torch.ones(1000 + rank)})
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [size]


def test_torch_ops_are_taken(world):
    rank, size = world
    for op, expected in (
        (dist.ReduceOp.SUM, sum(range(1, size + 1))),
        (dist.ReduceOp.AVG, (size + 1) / 2),
        (dist.ReduceOp.MAX, size),
        (dist.ReduceOp(dist.ReduceOp.MIN), 1),
        (dist._make_nccl_premul_sum(2.0), 2 * sum(range(1, size + 1))),
        (dist._make_nccl_premul_sum(torch.tensor(2.0)), 2 * sum(range(1, size + 1))),
        (None, sum(range(1, size + 1))),
    ):
        tree = {"x": torch.full((3,), float(rank + 1))}
        leafpack.all_reduce(tree, op)
        assert tree["x"].tolist() == [expected] * 3, op


def test_repr_of_a_group(world):
    group = leafpack._groups.resolve(None)
    assert repr(group) == f"leafpack.Group(rank={world[0]}, size={world[1]}, backend='gloo')"
    assert group is leafpack._groups.resolve(dist.group.WORLD)
