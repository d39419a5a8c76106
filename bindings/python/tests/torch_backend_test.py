"""torch.distributed over its backend "shm", which `import leafpack` registers: every collective against Gloo."""

import copy
import datetime
import os
import time

import pytest
import tensordict
import torch
import torch.distributed as dist

import leafpack

TIMEOUT = datetime.timedelta(seconds=120)
RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
# Nothing, one element, one chunk, several chunks with a rest (float32: 2 MiB are 524,288).
NUMELS = [0, 1, 1_000, 600_001]


@pytest.fixture(scope="session")
def gloo():
    """torch's default group is shm's; this one is of the same ranks over Gloo."""
    torch.set_num_threads(1)
    dist.init_process_group("shm", timeout=TIMEOUT)
    yield dist.new_group(backend="gloo", timeout=TIMEOUT)
    dist.barrier()
    dist.destroy_process_group()


def values(numel, dtype=torch.float32, seed=0, rank=RANK):
    """Small whole numbers, which every order of a sum gives the same bits; they differ between ranks."""
    generator = torch.Generator().manual_seed(1000 * seed + rank + 1)
    if dtype == torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator).bool()
    return torch.randint(1, 4, (numel,), generator=generator).to(dtype)


def both(gloo, call):
    """Runs `call(group)` over shm and over Gloo; both must return equal tensors."""
    ours, theirs = call(None), call(gloo)
    assert len(ours) == len(theirs)
    for mine, reference in zip(ours, theirs):
        assert mine.dtype == reference.dtype and torch.equal(mine, reference)


def test_it_is_registered_once():
    leafpack._torch_backend.register()
    assert dist.Backend.backend_list.count("shm") == 1
    assert dist.Backend.SHM == "shm"


def test_all_reduce_ops_and_dtypes(gloo):
    assert dist.get_backend() == "shm"
    ops = dist.ReduceOp
    numbers = [ops.SUM, ops.PRODUCT, ops.MIN, ops.MAX]
    for dtype in [torch.float32, torch.float64, torch.float16, torch.bfloat16]:
        for op in numbers:
            both(gloo, lambda group: _all_reduced(values(1_001, dtype), op, group))
    for dtype in [torch.uint8, torch.int8, torch.int32, torch.int64]:
        for op in numbers + [ops.BAND, ops.BOR, ops.BXOR]:
            if dtype in (torch.uint8, torch.int32, torch.int64) or op in numbers:
                both(gloo, lambda group: _all_reduced(values(1_001, dtype), op, group))
    for numel in NUMELS:
        both(gloo, lambda group: _all_reduced(values(numel), ops.SUM, group))
    both(gloo, lambda group: _all_reduced(values(100).to(torch.complex64), ops.SUM, group))
    # What Gloo has not.
    everybody = [values(1_001, rank=rank) for rank in range(SIZE)]
    mean = torch.stack(everybody).sum(0) / SIZE
    assert torch.equal(_all_reduced(values(1_001), ops.AVG, None)[0], mean)
    scaled = dist._make_nccl_premul_sum(0.5)
    assert torch.equal(_all_reduced(values(1_001), scaled, None)[0], torch.stack(everybody).sum(0) / 2)
    strided = torch.zeros(40, 30)[::2, 1::3]
    strided += RANK + 1
    dist.all_reduce(strided)
    assert strided.unique().tolist() == [SIZE * (SIZE + 1) / 2]


def _all_reduced(tensor, op, group):
    dist.all_reduce(tensor, op, group=group)
    return [tensor]


def test_collectives_of_one_tensor(gloo):
    for numel in NUMELS:
        for root in {0, SIZE - 1}:

            def broadcast(group):
                tensor = values(numel)
                dist.broadcast(tensor, root, group=group)
                return [tensor]

            def reduce(group):
                tensor = values(numel)
                dist.reduce(tensor, root, group=group)
                return [tensor] if RANK == root else []

            def gather(group):
                outputs = [torch.zeros(numel) for _ in range(SIZE)] if RANK == root else None
                dist.gather(values(numel), outputs, root, group=group)
                return outputs or []

            def scatter(group):
                output = torch.zeros(numel)
                inputs = [values(numel, seed=rank) for rank in range(SIZE)] if RANK == root else None
                dist.scatter(output, inputs, root, group=group)
                return [output]

            for call in (broadcast, reduce, gather, scatter):
                both(gloo, call)
        own = values(numel)
        dist.reduce(own, 0)
        assert RANK == 0 or torch.equal(own, values(numel))  # only the root's tensor changes

        def all_gather(group):
            outputs = [torch.zeros(numel) for _ in range(SIZE)]
            dist.all_gather(outputs, values(numel), group=group)
            return outputs

        def all_gather_into(group):
            output = torch.zeros(SIZE * numel)
            dist.all_gather_into_tensor(output, values(numel), group=group)
            return [output]

        both(gloo, all_gather)
        both(gloo, all_gather_into)


def test_reduce_scatter_and_all_to_all(gloo):
    for numel in NUMELS:
        whole = values(SIZE * numel)
        everybody = sum(values(SIZE * numel, rank=rank) for rank in range(SIZE))
        wanted = everybody[RANK * numel : (RANK + 1) * numel]
        output = torch.zeros(numel)
        dist.reduce_scatter_tensor(output, whole.clone())
        assert torch.equal(output, wanted)
        output = torch.zeros(numel)
        dist.reduce_scatter(output, list(whole.clone().view(SIZE, numel).unbind()), dist.ReduceOp.AVG)
        assert torch.equal(output, wanted / SIZE)

        output = torch.zeros(SIZE * numel)
        dist.all_to_all_single(output, whole.clone())
        parts = [values(SIZE * numel, rank=rank)[RANK * numel : (RANK + 1) * numel] for rank in range(SIZE)]
        assert torch.equal(output, torch.cat(parts))
        outputs = [torch.zeros(numel) for _ in range(SIZE)]
        dist.all_to_all(outputs, list(whole.view(SIZE, numel).unbind()))
        assert all(torch.equal(output, part) for output, part in zip(outputs, parts))

    # Rank r sends r + q + 1 rows to rank q.
    splits = [RANK + peer + 1 for peer in range(SIZE)]

    def uneven(group):
        output = torch.zeros(sum(splits), 3)
        rows = torch.arange(sum(splits) * 3).view(-1, 3) + 1000.0 * RANK
        dist.all_to_all_single(output, rows, splits, splits, group=group)
        return [output]

    both(gloo, uneven)


def test_lists_of_tensors(gloo):
    sizes = [3, 0, 600_001, 17]
    dtypes = [torch.float32, torch.float32, torch.float32, torch.float32]

    def everybody(i):
        return [values(sizes[i], dtypes[i], rank=rank) for rank in range(SIZE)]

    with dist._coalescing_manager():
        tensors = [values(size, dtype) for size, dtype in zip(sizes, dtypes)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, sum(everybody(i)))

    outputs = [torch.zeros(SIZE * size) for size in sizes]
    with dist._coalescing_manager():
        for i, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, values(sizes[i]))
    for i, output in enumerate(outputs):
        assert torch.equal(output, torch.cat(everybody(i)))

    parts = [torch.zeros(size) for size in sizes]
    with dist._coalescing_manager():
        for i, part in enumerate(parts):
            dist.reduce_scatter_tensor(part, values(SIZE * sizes[i]))
    for i, part in enumerate(parts):
        total = sum(values(SIZE * sizes[i], rank=rank) for rank in range(SIZE))
        assert torch.equal(part, total.view(SIZE, -1)[RANK] if sizes[i] else part)

    lists = [[torch.zeros(size) for size in sizes] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [values(size) for size in sizes])
    for rank in range(SIZE):
        for i, size in enumerate(sizes):
            assert torch.equal(lists[rank][i], values(size, rank=rank))


def test_messages(gloo):
    # Tags decide, not the order; a large one is not swallowed by the ring.
    large = 3_000_000
    sends = [
        dist.isend(torch.full((numel,), 10.0 * RANK + tag), NEXT, tag=tag)
        for tag, numel in [(1, 5), (2, large), (3, 0)]
    ]
    for tag, numel in [(3, 0), (2, large), (1, 5)]:
        got = torch.zeros(numel)
        assert dist.recv(got, BEFORE, tag=tag) == BEFORE
        assert torch.equal(got, torch.full((numel,), 10.0 * BEFORE + tag))
    for send in sends:
        send.wait()
    # In both directions at once.
    got = torch.zeros(large)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((large,), float(RANK)), NEXT),
            dist.P2POp(dist.irecv, got, BEFORE),
        ]
    ):
        work.wait()
    assert got.unique().tolist() == [BEFORE]
    # From any rank.
    if RANK == 0:
        seen = {}
        for _ in range(SIZE - 1):
            got = torch.zeros(2, dtype=torch.int64)
            source = dist.recv(got, tag=7)
            seen[source] = got.tolist()
        assert seen == {rank: [rank, rank] for rank in range(1, SIZE)}
    else:
        dist.send(torch.tensor([RANK, RANK]), 0, tag=7)
    # What does not fit is an error of the receiver, and what follows comes.
    send = dist.isend(torch.ones(4), NEXT, tag=1)
    with pytest.raises(dist.DistBackendError, match=f"group rank {BEFORE} sent 16 bytes of Float"):
        dist.recv(torch.ones(3), BEFORE, tag=1)
    send.wait()
    send = dist.isend(torch.ones(4), NEXT, tag=1)
    dist.recv(torch.zeros(4), BEFORE, tag=1)
    send.wait()


def test_disagreement_is_an_error_and_changes_nothing(gloo):
    tensor = torch.full((10 + RANK,), 5.0)
    with pytest.raises(dist.DistBackendError, match="the ranks disagree: group rank 0 .* 40 bytes"):
        dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [5.0]
    tensor = torch.full((10,), 5.0, dtype=torch.float32 if RANK == 0 else torch.int32)
    with pytest.raises(dist.DistBackendError, match="of Float.* of Int"):
        dist.all_reduce(tensor)
    with pytest.raises(dist.DistBackendError, match="calls all_reduce.* calls barrier"):
        if RANK == 0:
            dist.all_reduce(tensor)
        else:
            dist.barrier()
    with pytest.raises(dist.DistBackendError, match="root 0.* root 1"):
        dist.broadcast(torch.zeros(3), min(RANK, 1))
    with pytest.raises(dist.DistBackendError, match="group rank 0 sends 8 bytes to group rank 1"):
        dist.broadcast(torch.zeros(2 if RANK == 0 else 3), 0)
    with pytest.raises(ValueError, match="elements share memory"):
        dist.all_reduce(torch.zeros(1).expand(5))
    with pytest.raises(ValueError, match="avg"):
        dist.all_reduce(torch.zeros(1, dtype=torch.int32), dist.ReduceOp.AVG)
    both(gloo, lambda group: _all_reduced(values(100), dist.ReduceOp.SUM, group))


def test_works_in_flight(gloo):
    tensors = [torch.full((numel,), float(RANK + i)) for i, numel in enumerate([3, 600_001, 0, 40_000] * 5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    # Nobody waits for the first ones.
    works[-1].wait()
    for i, (work, tensor) in enumerate(zip(works, tensors)):
        assert work.is_completed()
        assert tensor.unique().tolist() == ([] if tensor.numel() == 0 else [sum(range(SIZE)) + SIZE * i])
    work = dist.all_reduce(torch.ones(3), async_op=True)
    chained = work.get_future().then(lambda future: future.value()[0] * 2)
    assert chained.wait().tolist() == [2.0 * SIZE] * 3
    # Without a wait: the thread in the background does it.
    if RANK == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        deadline = time.monotonic() + 100
        while not work.is_completed():
            assert time.monotonic() < deadline
            time.sleep(0.001)
    else:
        dist.all_reduce(torch.ones(3))
    # Own time of a wait: the work goes on.
    if RANK == 0:
        work = dist.barrier(async_op=True)
        with pytest.raises(dist.DistBackendError, match="was not over after 50 ms"):
            work.wait(datetime.timedelta(milliseconds=50))
        dist.send(torch.ones(1), 1)
        work.wait()
    else:
        if RANK == 1:
            dist.recv(torch.ones(1), 0)
        dist.barrier()


def test_several_groups(gloo):
    again = dist.new_group(backend="shm", timeout=TIMEOUT)
    first_two = dist.new_group([0, 1], backend="shm", timeout=TIMEOUT)
    mixed = dist.new_group(backend="cpu:shm", timeout=TIMEOUT)
    a, b, c, d = (torch.full((50_000,), float(RANK + 1)) for _ in range(4))
    works = [dist.all_reduce(a, async_op=True), dist.all_reduce(b, group=again, async_op=True)]
    if RANK < 2:
        works.append(dist.all_reduce(c, group=first_two, async_op=True))
    works.append(dist.all_reduce(d, group=mixed, async_op=True))
    for work in reversed(works):
        work.wait()
    total = SIZE * (SIZE + 1) / 2
    assert a[0] == b[0] == d[0] == total
    assert c[0] == (3 if RANK < 2 else RANK + 1)
    dist.destroy_process_group(again)
    dist.destroy_process_group(mixed)
    dist.barrier()


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.ReLU(), torch.nn.Linear(300, 2))


def _batch():
    torch.manual_seed(1)
    return torch.randn(4 * SIZE, 6), torch.randn(4 * SIZE, 2)


def _train(model, inputs, targets, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def test_ddp_trains_as_one_process(gloo):
    alone, inner = _model(), _model()
    inputs, targets = _batch()
    _train(alone, inputs, targets)
    mine = slice(4 * RANK, 4 * RANK + 4)
    _train(torch.nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.001), inputs[mine], targets[mine])
    for trained, wanted in zip(inner.parameters(), alone.parameters()):
        torch.testing.assert_close(trained, wanted)


def test_fsdp_trains_as_one_process(gloo):
    from torch.distributed.fsdp import fully_shard

    alone, sharded = _model(), _model()
    inputs, targets = _batch()
    _train(alone, inputs, targets)
    mesh = dist.init_device_mesh("cpu", (SIZE,))
    for layer in (sharded[0], sharded[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    mine = slice(4 * RANK, 4 * RANK + 4)
    _train(sharded, inputs[mine], targets[mine])
    for trained, wanted in zip(sharded.parameters(), alone.parameters()):
        torch.testing.assert_close(trained.full_tensor(), wanted)


def test_functional_collectives(gloo):
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    mine = torch.full((4,), float(RANK + 1))
    assert functional.all_reduce(mine, "sum", group).tolist() == [SIZE * (SIZE + 1) / 2] * 4
    gathered = functional.all_gather_tensor(mine, 0, group)
    assert gathered.tolist() == [float(rank + 1) for rank in range(SIZE) for _ in range(4)]
    part = functional.reduce_scatter_tensor(torch.ones(2 * SIZE), "avg", 0, group)
    assert part.tolist() == [1.0, 1.0]


def test_objects_and_trees(gloo):
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": rank} for rank in range(SIZE)]
    tree = tensordict.TensorDict({"a": torch.ones(3), "b": {"c": torch.full((2,), float(RANK))}})
    reduced = copy.deepcopy(tree)
    reduced.all_reduce(op=dist.ReduceOp.SUM)
    assert reduced["a"].tolist() == [SIZE] * 3
    assert reduced["b", "c"].tolist() == [sum(range(SIZE))] * 2
