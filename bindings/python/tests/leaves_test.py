"""Leaves of every kind: a leaf keeps to itself, and what cannot be reduced is refused by path."""

import pytest
import torch

import leafpack
import reference

LARGE = 40_000


@pytest.fixture(params=(6, LARGE), ids=("small", "large"))
def numel(request):
    return request.param


def _base(rank, *shape):
    return reference.leaf(rank, shape, torch.float32)


def _sum(size, *shape):
    return reference.reduced("sum", size, shape, torch.float32)


@pytest.mark.parametrize("bucket_bytes", ("auto", None, 4096, 1 << 20))
def test_every_second_element(world, numel, bucket_bytes):
    rank, size = world
    base = _base(rank, numel)
    expected = base.clone()
    expected[::2] = _sum(size, numel)[::2]
    leafpack.all_reduce({"x": base[::2]}, bucket_bytes=bucket_bytes)
    assert torch.equal(base, expected)


def test_columns(world, numel):
    rank, size = world
    base = _base(rank, numel, 4)
    expected = base.clone()
    expected[:, :2] = _sum(size, numel, 4)[:, :2]
    leafpack.all_reduce({"m": base[:, :2]})
    assert torch.equal(base, expected)


def test_interleaved_views_of_one_storage(world, numel):
    rank, size = world
    base = _base(rank, numel, 4)
    leafpack.all_reduce({"left": base[:, :2], "right": base[:, 2:]})
    assert torch.equal(base, _sum(size, numel, 4))


def test_permuted_and_channels_last(world):
    rank, size = world
    for shape in ((2, 3, 4, 5), (3, 16, 32, 32)):
        permuted = _base(rank, *shape).permute(3, 0, 2, 1)
        last = _base(rank, *shape).contiguous(memory_format=torch.channels_last)
        leafpack.all_reduce({"p": permuted, "l": last})
        assert torch.equal(permuted, _sum(size, *shape).permute(3, 0, 2, 1))
        assert torch.equal(last, _sum(size, *shape))
        assert last.is_contiguous(memory_format=torch.channels_last)


def test_memory_order_may_differ_between_ranks(world):
    rank, size = world
    for shape in ((4, 5), (200, 300)):
        leaf = _base(rank, *shape)
        if rank % 2 == 1:
            leaf = leaf.t().contiguous().t()
        leafpack.all_reduce({"x": leaf, "y": torch.ones(3)})
        assert torch.equal(leaf, _sum(size, *shape))


def test_backward_steps(world, numel):
    rank, size = world
    base = _base(rank, numel, 3)
    leaf = base.t()[1:2]
    expected = base.clone()
    expected[:, 1] = _sum(size, numel, 3)[:, 1]
    leafpack.all_reduce([leaf])
    assert torch.equal(base, expected)


def test_tied_leaves_are_reduced_once(world, numel):
    rank, size = world
    shared = _base(rank, numel)
    leafpack.all_reduce({"encoder": shared, "decoder": shared, "view": shared.view(-1)})
    assert torch.equal(shared, _sum(size, numel))


def test_tied_parameters_of_a_module(world):
    rank, size = world
    module = torch.nn.Module()
    module.a = torch.nn.Linear(3, 3, bias=False)
    module.b = torch.nn.Linear(3, 3, bias=False)
    module.b.weight = module.a.weight
    module.again = module.a
    with torch.no_grad():
        module.a.weight.copy_(_base(rank, 3, 3))
    leafpack.all_reduce(module)
    assert torch.equal(module.a.weight.detach(), _sum(size, 3, 3))


def test_a_leaf_that_requires_grad_counts_its_change(world, numel):
    rank, size = world
    weight = _base(rank, numel).requires_grad_()
    product = (weight * weight).sum()
    version = weight._version
    leafpack.all_reduce({"w": weight})
    assert weight._version > version
    assert weight.grad_fn is None and weight.is_leaf
    assert torch.equal(weight.detach(), _sum(size, numel))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_inference_mode(world):
    rank, size = world
    with torch.inference_mode():
        leaf = torch.ones(3)
        leafpack.all_reduce({"x": leaf})
        assert leaf.tolist() == [size] * 3


def test_zero_dimensional_and_empty(world):
    rank, size = world
    tree = {"s": torch.tensor(float(rank + 1)), "e": torch.empty(0, 3)}
    leafpack.all_reduce(tree)
    assert tree["s"].item() == size * (size + 1) / 2


def test_bool_sum_is_or(world):
    rank, size = world
    leaf = torch.tensor([True, False, rank == 0])
    leafpack.all_reduce({"b": leaf})
    assert leaf.view(torch.uint8).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "dtype", (torch.float32, torch.float64, torch.float16, torch.bfloat16), ids=str
)
@pytest.mark.parametrize("op", ("max", "min"))
def test_nan_is_kept_whoever_holds_it(world, op, dtype, numel):
    rank, size = world
    for holder in range(size):
        leaf = torch.full((numel,), float(rank), dtype=dtype)
        if rank == holder:
            leaf[1] = float("nan")
        leafpack.all_reduce({"x": leaf}, op)
        assert leaf.isnan().nonzero().flatten().tolist() == [1]
        assert leaf[0].item() == (size - 1 if op == "max" else 0)


def test_integer_overflow_wraps(world):
    rank, size = world
    leaf = torch.tensor([100, -100], dtype=torch.int8)
    leafpack.all_reduce({"x": leaf})
    expected = (torch.tensor([100, -100]) * size).to(torch.int8)
    assert torch.equal(leaf, expected)


def test_memory_mapped_leaf(world, tmp_path):
    tensordict = pytest.importorskip("tensordict")
    rank, size = world
    tree = tensordict.TensorDict({"x": _base(rank, 5)}).memmap_(str(tmp_path / str(rank)))
    leafpack.all_reduce(tree)
    assert torch.equal(torch.as_tensor(tree["x"]), _sum(size, 5))


def test_conjugate_view(world, numel):
    """The values of the view are reduced, not the conjugates that lie in memory."""
    rank, size = world
    base = torch.complex(_base(rank, numel), _base(rank + 1, numel))
    expected = sum(
        torch.complex(_base(r, numel), _base(r + 1, numel)).conj().resolve_conj()
        for r in range(size)
    )
    view = base.conj()
    leafpack.all_reduce({"z": view})
    assert torch.equal(view.resolve_conj(), expected)


def _refused_leaves():
    yield "expanded", lambda: torch.ones(1).expand(4)
    yield "unfolded", lambda: torch.ones(6).unfold(0, 3, 1)
    yield "absent", lambda: None
    yield "meta", lambda: torch.ones(3, device="meta")
    yield "uninitialized", lambda: torch.nn.LazyLinear(3).weight
    yield "csr", lambda: torch.eye(3).to_sparse_csr()
    yield "quantized", lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name, make", list(_refused_leaves()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_leaf_that_cannot_be_reduced_is_refused(world, name, make):
    good = torch.ones(3)
    with pytest.raises((leafpack.UnsupportedError, ValueError)) as error:
        leafpack.all_reduce({"good": good, "bad": {name: make()}})
    assert not isinstance(error.value, (leafpack.LayoutMismatchError, leafpack.PeerRefusedError))
    assert f"bad.{name}" in str(error.value)
    assert good.tolist() == [1] * 3


def test_partly_overlapping_leaves_are_refused(world):
    base = torch.ones(10)
    with pytest.raises(ValueError) as error:
        leafpack.all_reduce({"a": base[:6], "b": base[4:]})
    assert "a" in str(error.value) and "b" in str(error.value)
    assert base.tolist() == [1] * 10


def test_a_leaf_with_a_history_is_refused(world):
    weight = torch.ones(3, requires_grad=True)
    leaf = weight * 2
    with pytest.raises((ValueError, TypeError)) as error:
        leafpack.all_reduce({"h": leaf})
    assert "h" in str(error.value)
    with torch.no_grad():
        leafpack.all_reduce({"h": leaf})
    assert leaf.tolist() == [2 * world[1]] * 3


def test_average_of_integers_is_refused(world, numel):
    leaf = torch.ones(numel, dtype=torch.int32)
    with pytest.raises(leafpack.UnsupportedError) as error:
        leafpack.all_reduce({"f": torch.ones(2), "steps": leaf}, "avg")
    assert error.value.path == "steps"
    assert leaf.unique().tolist() == [1]


def test_complex_maximum_is_refused(world):
    with pytest.raises(leafpack.UnsupportedError) as error:
        leafpack.all_reduce({"z": torch.ones(2, dtype=torch.complex64)}, "max")
    assert error.value.path == "z"


def test_fake_tensors_are_refused(world):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    with pytest.raises(leafpack.UnsupportedError) as error:
        leafpack.all_reduce({"fake": fake})
    assert error.value.path == "fake"


def test_a_tensordict_in_a_file_is_refused(world):
    tensordict = pytest.importorskip("tensordict")
    indexed = tensordict.TensorDict({"x": torch.ones(4)}, batch_size=[4])._get_sub_tensordict(0)
    with pytest.raises(leafpack.UnsupportedError):
        leafpack.all_reduce({"view": indexed})
