"""Trees in memory that the ranks share."""

import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict

import leafpack

LARGE = 300_000  # elements; smaller leaves are copied


@pytest.fixture(scope="module")
def group(world):
    return leafpack.Group.around().new_group(range(world[1]), backend="shm", timeout=120)


def _values(rank, numel=LARGE):
    return torch.arange(numel, dtype=torch.float32) % 7 * (rank + 1)


def _sums(size, numel=LARGE):
    return torch.arange(numel, dtype=torch.float32) % 7 * (size * (size + 1) / 2)


def test_a_dict_of_everything(world, group):
    rank, size = world
    weight = _values(rank)
    tree = {
        "w": weight,
        "again": weight,
        "list": [torch.full((2, 3), rank + 1.0, dtype=torch.float64).t(), torch.zeros(0)],
        "half": torch.full((), rank + 1, dtype=torch.float16),
        "p": torch.nn.Parameter(_values(rank, 5)),
        "step": 3,
    }
    shared = leafpack.share(tree, group=group)
    assert shared.keys() == tree.keys() and shared["step"] == 3
    assert shared["again"] is shared["w"] and shared["w"] is not weight
    assert shared["list"][0].stride() == tree["list"][0].stride()
    assert shared["p"].requires_grad and shared["p"].is_leaf
    for path in ("w", "half", "p"):
        assert torch.equal(shared[path], tree[path]) and shared[path].dtype == tree[path].dtype
    address = shared["w"].data_ptr()
    del shared["step"]  # no tensor
    leafpack.all_reduce(shared, group=group)
    assert torch.equal(shared["w"], _sums(size)) and shared["w"].data_ptr() == address
    assert torch.equal(shared["p"].detach(), _sums(size, 5))
    assert shared["list"][0].unique().tolist() == [size * (size + 1) / 2]
    assert torch.equal(weight, _values(rank))


def test_a_tensordict_that_is_set_in_place(world, group):
    rank, size = world
    tree = TensorDict({"a": {"x": _values(rank)}, "y": _values(rank)}, batch_size=[LARGE])
    shared = leafpack.share(tree, group=group)
    assert isinstance(shared, TensorDict) and shared.batch_size == tree.batch_size
    for _ in range(3):
        leafpack.all_reduce(shared, group=group)
        assert torch.equal(shared["a", "x"], _sums(size))
        assert torch.equal(shared["y"], _sums(size))
        address = shared["a", "x"].data_ptr()
        shared.set_(("a", "x"), _values(rank))
        shared["y"][:1000] = _values(rank)[:1000]  # a view
        shared["y"][1000:].copy_(_values(rank)[1000:])
        assert shared["a", "x"].data_ptr() == address
    # A new leaf on one rank only.
    if rank == size - 1:
        shared["y"] = _values(rank)
    leafpack.all_reduce(shared, group=group)
    assert torch.equal(shared["a", "x"], _sums(size)) and torch.equal(shared["y"], _sums(size))


def test_a_leafpack_tensordict(world, group):
    rank, size = world
    shared = leafpack.share(leafpack.TensorDict({"x": _values(rank)}), group=group)
    assert isinstance(shared, leafpack.TensorDict)
    leafpack.all_reduce(shared, group=group, bucket_bytes=None)
    assert torch.equal(shared["x"], _sums(size))


def test_steps_of_an_optimizer(world, group):
    """The same parameters on all ranks after each step as one process has with the mean of all gradients."""
    rank, size = world
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.Linear(400, 3))
    alone = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.Linear(400, 3))
    alone.load_state_dict(model.state_dict())
    assert leafpack.share(model, group=group) is model
    addresses = [p.data_ptr() for p in model.parameters()]
    grads = leafpack.share(
        {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()},
        group=group,
    )
    for name, p in model.named_parameters():
        p.grad = grads[name]
    steps = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, alone)]
    for step in range(3):
        inputs = [torch.randn(4, 400, generator=torch.Generator().manual_seed(8 * step + r)) for r in range(size)]
        steps[0].zero_grad(set_to_none=False)
        model(inputs[rank]).square().mean().backward()
        leafpack.all_reduce(grads, "avg", group=group)
        steps[0].step()
        steps[1].zero_grad()
        (sum(alone(x).square().mean() for x in inputs) / size).backward()
        steps[1].step()
    for (name, p), q in zip(model.named_parameters(), alone.parameters()):
        assert p.grad.data_ptr() == grads[name].data_ptr()
        torch.testing.assert_close(p, q)
    assert [p.data_ptr() for p in model.parameters()] == addresses
    # Equal bits: the mean of equal things is each of them.
    before = [p.detach().clone() for p in model.parameters()]
    leafpack.all_reduce(model, "max", group=group)
    for p, q in zip(model.parameters(), before):
        assert torch.equal(p.detach(), q)


def test_errors(world, group):
    rank, size = world
    if size > 1:
        tree = {"a": torch.zeros(3), "b": torch.zeros(4 if rank == size - 1 else 5)}
        with pytest.raises(leafpack.LayoutMismatchError) as mismatch:
            leafpack.share(tree, group=group)
        assert mismatch.value.path == "b" and size - 1 in mismatch.value.ranks
        with pytest.raises(leafpack.UnsupportedError, match="gloo does not share memory"):
            leafpack.share({"a": torch.zeros(3)}, group=dist.group.WORLD)
    if size > 1 and rank == 0:
        with pytest.raises(TypeError):
            leafpack.share({"a": object()}, group=group)
    elif size > 1:
        with pytest.raises(leafpack.PeerRefusedError):
            leafpack.share({"a": torch.zeros(3)}, group=group)
    shared = leafpack.share({"a": _values(rank)}, group=group)
    leafpack.all_reduce(shared, group=group)
    assert torch.equal(shared["a"], _sums(size))


def test_memory_that_cannot_be_had(world, group):
    if world[1] == 1:
        pytest.skip("a group of one shares nothing")
    with open("/proc/meminfo") as info:
        total = int(info.readline().split()[1]) * 1024
    with pytest.raises(MemoryError, match="group rank 0"):
        leafpack.share({"huge": torch.empty(total // 5 * 3, dtype=torch.uint8)}, group=group)
    leafpack.barrier(group=group)
