"""Values: every tree kind, dtype, op and bucketing against a reference in one process."""

import collections

import pytest
import tensordict
import torch
import torch.distributed as dist

import leafpack
import reference

# Small trees travel with their digest, large ones through the backend.
SMALL = (5, 3)
LARGE = (200, 101)
BUCKETINGS = ("auto", None, 1, 4096, 1 << 20)
SHAPES = ((), (0,), (1,), (7,), (3, 4), (2, 0, 3), (31, 33))


@pytest.mark.parametrize("shape", (SMALL, LARGE), ids=("small", "large"))
@pytest.mark.parametrize("op", reference.OPS)
@pytest.mark.parametrize("dtype", reference.DTYPES, ids=str)
def test_dtype_and_op(world, dtype, op, shape):
    rank, size = world
    tree = {"x": reference.leaf(rank, shape, dtype)}
    before = tree["x"].clone()
    if reference.allowed(op, dtype):
        assert leafpack.all_reduce(tree, op) is None
        assert reference.same_bytes(tree["x"], reference.reduced(op, size, shape, dtype))
        if dtype == torch.bool:
            assert set(tree["x"].view(torch.uint8).unique().tolist()) <= {0, 1}
    else:
        with pytest.raises(leafpack.UnsupportedError) as error:
            leafpack.all_reduce(tree, op)
        assert error.value.path == "x"
        assert op in str(error.value) and str(dtype).removeprefix("torch.") in str(error.value)
        assert reference.same_bytes(tree["x"], before)


@pytest.mark.parametrize("shape", (SMALL, LARGE), ids=("small", "large"))
@pytest.mark.parametrize("dtype", reference.FLOATS + reference.COMPLEX, ids=str)
def test_premul_sum(world, dtype, shape):
    rank, size = world
    factors = [0.5 * (r + 1) for r in range(size)]
    tree = [reference.leaf(rank, shape, dtype)]
    leafpack.all_reduce(tree, leafpack.premul_sum(factors[rank]))
    expected = reference.reduced("premul_sum", size, shape, dtype, factors=factors)
    assert reference.same_bytes(tree[0], expected)


def _tree(rank, dtypes=(torch.float32, torch.int32, torch.float16)):
    return {
        f"{i}.{str(dtype)[6:]}": [
            reference.leaf(rank, shape, dtype, seed=i) for i, shape in enumerate(SHAPES)
        ]
        for i, dtype in enumerate(dtypes)
    }


def _expected(size, op="sum", dtypes=(torch.float32, torch.int32, torch.float16)):
    return {
        f"{i}.{str(dtype)[6:]}": [
            reference.reduced(op, size, shape, dtype, seed=i) for i, shape in enumerate(SHAPES)
        ]
        for i, dtype in enumerate(dtypes)
    }


def _assert_equal(tree, expected):
    for name, leaves in expected.items():
        for leaf, want in zip(tree[name], leaves, strict=True):
            assert reference.same_bytes(leaf, want), name


@pytest.mark.parametrize("async_op", (False, True), ids=("sync", "async"))
@pytest.mark.parametrize("bucket_bytes", BUCKETINGS)
def test_bucketings(world, bucket_bytes, async_op):
    rank, size = world
    tree = _tree(rank)
    work = leafpack.all_reduce(tree, bucket_bytes=bucket_bytes, async_op=async_op)
    if async_op:
        work.wait()
        assert work.is_completed()
    else:
        assert work is None
    _assert_equal(tree, _expected(size))


@pytest.mark.parametrize("bucket_bytes", BUCKETINGS)
def test_large_trees_in_all_bucketings(world, bucket_bytes):
    rank, size = world
    shapes = [(1 + 977 * i % 5000,) for i in range(40)]
    tree = {
        f"k{i}": reference.leaf(rank, shape, torch.float32, i) for i, shape in enumerate(shapes)
    }
    leafpack.all_reduce(tree, bucket_bytes=bucket_bytes)
    for i, shape in enumerate(shapes):
        expected = reference.reduced("sum", size, shape, torch.float32, i)
        assert reference.same_bytes(tree[f"k{i}"], expected)


@pytest.mark.parametrize("numel", (100, 50_000))
def test_equal_bits_on_all_ranks(world, numel):
    rank, size = world
    torch.manual_seed(1 + rank)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        leaf = torch.randn(numel, dtype=torch.float64).to(dtype)
        reference_sum = leaf.double()
        dist.all_reduce(reference_sum)
        leafpack.all_reduce({"x": leaf})
        gathered = [
            torch.empty(leaf.numel() * leaf.itemsize, dtype=torch.uint8) for _ in range(size)
        ]
        dist.all_gather(gathered, leaf.view(torch.uint8))
        for other in gathered:
            assert torch.equal(other, gathered[0])
        tolerance = size * torch.finfo(dtype).eps * 8
        assert torch.allclose(leaf.double(), reference_sum, rtol=tolerance, atol=tolerance)


def test_against_torch_distributed(world):
    rank, size = world
    for op in ("SUM", "PRODUCT", "MIN", "MAX"):
        for dtype in (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64):
            mine = {"x": reference.leaf(rank, LARGE, dtype)}
            theirs = mine["x"].clone()
            leafpack.all_reduce(mine, getattr(dist.ReduceOp, op))
            dist.all_reduce(theirs, getattr(dist.ReduceOp, op))
            assert torch.equal(mine["x"], theirs), (op, dtype)


def _tensordict_tree(rank):
    @tensordict.tensorclass
    class Pair:
        first: torch.Tensor
        note: str

    return tensordict.TensorDict(
        {
            "weight": reference.leaf(rank, (4, 3), torch.float32, 1),
            "nested": {
                "a.b": reference.leaf(rank, (4,), torch.float32, 2),
                "text": "the same on all ranks",
                "deep": {"0": reference.leaf(rank, (4, 2, 2), torch.float64, 3)},
            },
            "pair": Pair(
                first=reference.leaf(rank, (4, 5), torch.float32, 4), note="n", batch_size=[4]
            ),
        },
        batch_size=[4],
    )


@pytest.mark.parametrize("bucket_bytes", (None, 1 << 20))
def test_against_tensordict(world, bucket_bytes):
    rank, size = world
    theirs = _tensordict_tree(rank)
    mine = theirs.clone()
    theirs.all_reduce(op=dist.ReduceOp.SUM, bucket_bytes=bucket_bytes)
    leafpack.all_reduce(mine, dist.ReduceOp.SUM, bucket_bytes=bucket_bytes)
    for key in ("weight", ("nested", "a.b"), ("nested", "deep", "0"), ("pair", "first")):
        assert torch.equal(mine.get(key), theirs.get(key)), key
    assert mine["nested", "text"] == "the same on all ranks"
    assert torch.equal(mine["weight"], reference.reduced("sum", size, (4, 3), torch.float32, 1))


def test_lazy_stack(world):
    rank, size = world
    stack = tensordict.lazy_stack(
        [
            tensordict.TensorDict({"x": reference.leaf(rank, (n,), torch.float32, n)})
            for n in (2, 3, 5)
        ]
    )
    leafpack.all_reduce(stack)
    for n, element in zip((2, 3, 5), stack.tensordicts, strict=True):
        assert torch.equal(element["x"], reference.reduced("sum", size, (n,), torch.float32, n))


def test_params_and_module(world):
    rank, size = world
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False)
    )
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(reference.leaf(rank, parameter.shape, torch.float32, i))
    params = tensordict.TensorDictParams(
        tensordict.TensorDict(
            {"w": torch.nn.Parameter(reference.leaf(rank, (3,), torch.float32, 9))}
        )
    )
    leafpack.all_reduce(module, "avg")
    leafpack.all_reduce(params)
    for i, parameter in enumerate(module.parameters()):
        expected = reference.reduced("avg", size, parameter.shape, torch.float32, i)
        assert torch.equal(parameter.detach(), expected)
    assert torch.equal(params["w"].detach(), reference.reduced("sum", size, (3,), torch.float32, 9))


def test_containers(world):
    rank, size = world
    point = collections.namedtuple("point", "x y")
    tree = {
        "list": [reference.leaf(rank, (3,), torch.float32, 1), ()],
        "tuple": point(reference.leaf(rank, (2,), torch.int64, 2), [{}]),
        7: collections.OrderedDict(z=reference.leaf(rank, (1,), torch.float32, 3)),
        "native": leafpack.TensorDict({"w": reference.leaf(rank, (2,), torch.float32, 4)}),
    }
    leafpack.all_reduce(tree)
    assert torch.equal(tree["list"][0], reference.reduced("sum", size, (3,), torch.float32, 1))
    assert torch.equal(tree["tuple"].x, reference.reduced("sum", size, (2,), torch.int64, 2))
    assert torch.equal(tree[7]["z"], reference.reduced("sum", size, (1,), torch.float32, 3))
    assert torch.equal(tree["native"]["w"], reference.reduced("sum", size, (2,), torch.float32, 4))


def test_one_tensor(world):
    rank, size = world
    tensor = reference.leaf(rank, (6,), torch.float32)
    leafpack.all_reduce(tensor)
    assert torch.equal(tensor, reference.reduced("sum", size, (6,), torch.float32))


def test_empty_trees(world):
    for tree in ({}, [], tensordict.TensorDict({}), leafpack.TensorDict(), {"a": {"b": []}}):
        assert leafpack.all_reduce(tree) is None
        leafpack.all_reduce(tree, async_op=True).wait()


@pytest.mark.parametrize("bucket_bytes", (None, 4096))
def test_tensor_dict_method(world, bucket_bytes):
    rank, size = world
    tree = leafpack.TensorDict({"a": reference.leaf(rank, (3,), torch.float32), "b": {}})
    assert tree.all_reduce(dist.ReduceOp.SUM, bucket_bytes=bucket_bytes) is None
    assert torch.equal(tree["a"], reference.reduced("sum", size, (3,), torch.float32))
    work = tree.all_reduce(async_op=True, bucket_bytes=bucket_bytes)
    work.wait()


def test_floating_leaves_only(world):
    rank, size = world
    tree = {
        "f": reference.leaf(rank, (3,), torch.float32, 1),
        "i": reference.leaf(rank, (3,), torch.int32, 2),
        "text": "left alone",
    }
    leafpack.all_reduce(tree, "avg", leaves="floating")
    assert torch.equal(tree["f"], reference.reduced("avg", size, (3,), torch.float32, 1))
    assert torch.equal(tree["i"], reference.leaf(rank, (3,), torch.int32, 2))


def test_predicate(world):
    rank, size = world
    tree = {"keep": {"a": torch.ones(2), "b": torch.ones(3)}, "skip": None, "n": 3}
    for _ in range(2):
        seen = []

        def take(path, leaf):
            seen.append(path)
            return path[0] == "keep" and leaf.numel() == 3

        leafpack.all_reduce(tree, leaves=take)
        assert sorted(seen) == [("keep", "a"), ("keep", "b"), ("n",), ("skip",)]
    assert tree["keep"]["b"].tolist() == [size**2] * 3
    assert tree["keep"]["a"].tolist() == [1] * 2


def test_many_async_calls_in_flight(world):
    rank, size = world
    trees = [
        {"x": reference.leaf(rank, (1 + 4000 * (i % 3),), torch.float32, i)} for i in range(20)
    ]
    works = [
        leafpack.all_reduce(tree, async_op=True, name=f"call {i}") for i, tree in enumerate(trees)
    ]
    for work in reversed(works):
        work.wait()
    for i, tree in enumerate(trees):
        expected = reference.reduced("sum", size, tree["x"].shape, torch.float32, i)
        assert torch.equal(tree["x"], expected)


def test_works_of_an_async_call(world):
    rank, size = world
    tree = {f"k{i}": reference.leaf(rank, (20_000,), torch.float32, i) for i in range(4)}
    work = leafpack.all_reduce(tree, async_op=True, bucket_bytes=None)
    works = list(work)
    assert len(work) == len(works) >= 1
    for bucket in works:
        bucket.wait(timeout=100)
        assert bucket.is_completed()
    if size > 1:
        assert sorted(path for bucket in works for path in bucket.paths) == sorted(tree)
        assert sum(bucket.bytes for bucket in works) == 4 * 80_000
    assert work.is_completed()
    assert work.result() is tree
    for i in range(4):
        assert torch.equal(
            tree[f"k{i}"], reference.reduced("sum", size, (20_000,), torch.float32, i)
        )


def test_a_dropped_handle_is_finished(world):
    rank, size = world
    tree = {"x": reference.leaf(rank, (30_000,), torch.float32)}
    leafpack.all_reduce(tree, async_op=True)
    later = {"x": torch.ones(3)}
    leafpack.all_reduce(later)
    assert later["x"].tolist() == [size] * 3


def test_stats(world):
    tree = {"x": torch.ones(50_000)}
    stats = {}
    leafpack.all_reduce(tree, stats=stats)
    assert stats["leaves"] == 1 and stats["bytes"] == 200_000
    assert stats["total"] >= stats["agree"] >= 0


def test_restore_gives_the_same_values(world):
    rank, size = world
    tree = _tree(rank)
    leafpack.all_reduce(tree, on_failure="restore")
    _assert_equal(tree, _expected(size))


@pytest.mark.parametrize("check", ("always", "first"))
def test_check_modes(world, check):
    rank, size = world
    for _ in range(3):
        tree = _tree(rank)
        leafpack.all_reduce(tree, check=check)
        _assert_equal(tree, _expected(size))
