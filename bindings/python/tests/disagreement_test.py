"""Ranks that disagree: one clear error on every rank, no leaf has changed, the group goes on."""

import pytest
import tensordict
import torch
import torch.distributed as dist

import leafpack

LARGE = 50_000


@pytest.fixture(params=(1, LARGE), ids=("small", "large"))
def scale(request):
    """Leaves of one size travel with the digest, those of the other through the backend."""
    return request.param


@pytest.fixture(autouse=True)
def needs_peers(world):
    if world[1] == 1:
        pytest.skip("one rank agrees with itself")


def _leaves(tree):
    return dict(leafpack._C.read_tree(tree))


def check_mismatch(world, tree, words, path=None, **arguments):
    """Asserts the error on this rank, that `tree` is unchanged, and that the group still works."""
    rank, size = world
    before = {key: leaf.clone() for key, leaf in _leaves(tree).items()}
    with pytest.raises(leafpack.LayoutMismatchError) as error:
        leafpack.all_reduce(tree, **arguments)
    for word in words:
        assert word in str(error.value), str(error.value)
    if path is not None:
        assert error.value.path in path
    assert isinstance(error.value, ValueError)
    assert error.value.tree_unchanged and not error.value.outcome_unknown
    assert error.value.ranks and set(error.value.ranks) <= set(range(size))
    for key, leaf in _leaves(tree).items():
        assert torch.equal(leaf, before[key]), key
    check_usable(world)


def check_usable(world):
    for numel in (3, 40_000):
        tree = {"x": torch.full((numel,), float(world[0] + 1))}
        leafpack.all_reduce(tree)
        assert tree["x"].unique().tolist() == [world[1] * (world[1] + 1) / 2]


def test_same_keys_in_another_order_agree(world, scale):
    rank, size = world
    keys = ["a", "b", "c"] if rank == 0 else ["c", "b", "a"]
    for make in (dict, tensordict.TensorDict, leafpack.TensorDict):
        tree = make({key: torch.full((scale,), float(ord(key))) for key in keys})
        leafpack.all_reduce(tree)
        for key in keys:
            assert tree[key].unique().tolist() == [size * ord(key)]


def test_another_name(world, scale):
    tree = {"k1": torch.ones(scale), "k8" if world[0] == 0 else "k9": torch.ones(scale)}
    check_mismatch(world, tree, ["k8", "k9"], ("k8", "k9"))


def test_one_key_more(world, scale):
    tree = {"a": torch.ones(scale), "b": torch.ones(scale)}
    if world[0] == world[1] - 1:
        tree["extra"] = torch.ones(scale)
    check_mismatch(world, tree, ["extra"], ("extra",))


def test_shapes_of_equal_count(world):
    shapes = ((2,), (3,)) if world[0] == 0 else ((3,), (2,))
    tree = {"a": torch.ones(shapes[0]), "b": torch.ones(shapes[1])}
    check_mismatch(world, tree, ["a", "[2]", "[3]"], ("a",))


@pytest.mark.parametrize("bucket_bytes", ("auto", None, 1 << 20))
@pytest.mark.parametrize("numel", (1024, 100_000))
def test_one_element_more(world, numel, bucket_bytes):
    tree = {"a": torch.ones(numel if world[0] == 0 else numel + 1)}
    check_mismatch(
        world, tree, ["a", f"[{numel}]", f"[{numel + 1}]"], ("a",), bucket_bytes=bucket_bytes
    )


def test_another_dtype(world, scale):
    tree = {"a": torch.ones(scale, dtype=torch.float32 if world[0] == 0 else torch.int32)}
    check_mismatch(world, tree, ["a", "float32", "int32"], ("a",))


def test_another_bucket_size(world, scale):
    check_mismatch(
        world, {"a": torch.ones(scale)}, ["bucket"], bucket_bytes=1024 if world[0] == 0 else 2048
    )


def test_another_op(world, scale):
    check_mismatch(
        world, {"a": torch.ones(scale)}, ["sum", "max"], op="sum" if world[0] == 0 else "max"
    )


def test_another_name_of_the_call(world, scale):
    name = "loss" if world[0] == 0 else "gradients"
    check_mismatch(world, {"a": torch.ones(scale)}, ["loss", "gradients"], name=name)


def test_other_leaves(world):
    leaves = "all" if world[0] == 0 else "floating"
    check_mismatch(world, {"a": torch.ones(3)}, [], leaves=leaves)


def test_restore_on_one_rank_only(world, scale):
    on_failure = "report" if world[0] == 0 else "restore"
    check_mismatch(world, {"a": torch.ones(scale)}, [], on_failure=on_failure)


def test_nested_and_flat_names_differ(world):
    tree = {"a.b": torch.ones(2)} if world[0] == 0 else {"a": {"b": torch.ones(2)}}
    check_mismatch(world, tree, ["a"])


def test_position_and_name_differ(world):
    tree = {"a": [torch.ones(2)]} if world[0] == 0 else {"a": {"0": torch.ones(2)}}
    check_mismatch(world, tree, ["a"])


def test_tied_on_one_rank_only(world, scale):
    shared = torch.ones(scale)
    tree = {"a": shared, "b": shared if world[0] == 0 else torch.ones(scale)}
    check_mismatch(world, tree, ["b"], ("b",))


def test_async_calls_raise_when_waited_for(world, scale):
    tree = {"a": torch.ones(scale + world[0])}
    work = leafpack.all_reduce(tree, async_op=True)
    for _ in range(2):
        with pytest.raises(leafpack.LayoutMismatchError):
            work.wait()
    assert tree["a"].unique().tolist() == [1.0]
    check_usable(world)


# Refusals: one rank cannot take part, the others learn who and why at once.


def check_refused(world, who, tree, own_error, words, make_arguments=dict):
    rank, size = world
    if rank == who:
        with pytest.raises(own_error) as error:
            leafpack.all_reduce(tree, **make_arguments())
        result = error.value
    else:
        with pytest.raises(leafpack.PeerRefusedError) as error:
            leafpack.all_reduce({"a": torch.ones(3)})
        assert error.value.ranks == (who,)
        assert error.value.tree_unchanged
        for word in words:
            assert word in str(error.value), str(error.value)
        result = error.value
    check_usable(world)
    return result


@pytest.mark.parametrize("who", (0, -1), ids=("first", "last"))
def test_a_value_that_is_no_tensor(world, who):
    who %= world[1]
    check_refused(world, who, {"a": {"b": "text"}}, leafpack.UnsupportedError, ["a.b", "str"])


@pytest.mark.parametrize("who", (0, -1), ids=("first", "last"))
def test_a_key_that_is_no_name(world, who):
    who %= world[1]
    tree = {"a": {(1, 2): torch.ones(1)}}
    error = check_refused(
        world, who, tree, (leafpack.UnsupportedError, leafpack.PeerRefusedError), ["(1, 2)"]
    )
    if world[0] == who:
        assert isinstance(error, TypeError) and error.path == "a"


def test_a_tree_that_contains_itself(world):
    tree = {}
    tree["again"] = tree
    check_refused(world, world[1] - 1, tree, leafpack.UnsupportedError, ["again"])


@pytest.mark.parametrize(
    "arguments, own_error",
    (
        ({"op": "median"}, ValueError),
        ({"op": 3.5}, TypeError),
        ({"bucket_bytes": 0}, ValueError),
        ({"bucket_bytes": -1}, ValueError),
        ({"bucket_bytes": "some"}, TypeError),
        ({"timeout": 0}, ValueError),
        ({"timeout": -1.0}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"timeout": "soon"}, TypeError),
        ({"leaves": "half"}, ValueError),
        ({"leaves": 3}, TypeError),
        ({"on_failure": "ignore"}, ValueError),
        ({"check": "never"}, ValueError),
        ({"name": 3}, TypeError),
        ({"name": "n" * 257}, ValueError),
        ({"name": "\ud800"}, ValueError),
        ({"op": "\ud800"}, ValueError),
        ({"async_op": torch.ones(2)}, RuntimeError),
        ({"stats": 3}, TypeError),
    ),
    ids=ascii,
)
def test_bad_arguments(world, arguments, own_error):
    check_refused(world, world[1] - 1, {"a": torch.ones(3)}, own_error, [], lambda: arguments)


def test_a_predicate_that_raises(world):
    def predicate(path, leaf):
        raise LookupError("no such table")

    arguments = lambda: {"leaves": predicate}  # noqa: E731
    check_refused(world, 0, {"a": torch.ones(3)}, LookupError, ["no such table"], arguments)


def test_refusals_of_all_ranks(world):
    with pytest.raises(leafpack.UnsupportedError) as error:
        leafpack.all_reduce({"a": world[0]})
    assert error.value.path == "a"
    check_usable(world)


def test_everyone_keeps_its_own_default_group(world):
    """The user's own collectives pair with each other whatever happened here."""
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world[1]] * 4
