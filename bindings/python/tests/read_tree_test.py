"""How Python trees are read: paths, order, what is passed over, what is refused."""

import collections
import gc
import types

import pytest
import tensordict
import torch

import leafpack
from leafpack._C import read_tree, walk_tree


def paths(tree, **arguments):
    return [path for path, _ in read_tree(tree, **arguments)]


def leaf(value=0.0):
    return torch.tensor([value])


def test_canonical_order_is_by_component():
    tree = {"b": leaf(), "a": {"z": leaf(), "": leaf(), "é": leaf()}, 10: leaf(), 9: leaf()}
    assert paths(tree) == [(9,), (10,), ("a", ""), ("a", "z"), ("a", "é"), ("b",)]


def test_leaves_are_the_objects_themselves():
    parameter = torch.nn.Parameter(torch.ones(2))
    tree = {"t": leaf(), "p": parameter}
    read = dict(read_tree(tree))
    assert read[("t",)] is tree["t"] and read[("p",)] is parameter


@pytest.mark.parametrize("rounds", (1, 3))
def test_containers(rounds):
    point = collections.namedtuple("point", "x y")
    tree = {
        "list": [leaf(), (leaf(), [leaf()])],
        "point": point(leaf(), None),
        "ordered": collections.OrderedDict(k=leaf()),
        "user": collections.UserDict(k=leaf()),
        "proxy": types.MappingProxyType({"k": leaf()}),
        "empty": [{}, [], ()],
    }
    for _ in range(rounds):
        assert paths(tree) == [
            ("list", 0),
            ("list", 1, 0),
            ("list", 1, 1, 0),
            ("ordered", "k"),
            ("point", 0),
            ("point", 1),
            ("proxy", "k"),
            ("user", "k"),
        ]


@pytest.mark.parametrize("rounds", (1, 3))
def test_tensordict_trees(rounds):
    @tensordict.tensorclass
    class Pair:
        first: torch.Tensor
        note: str

    class Typed(tensordict.TypedTensorDict):
        eta: torch.Tensor

    tree = tensordict.TensorDict(
        {
            "a.b": torch.ones(2),
            "text": "hello",
            "nested": {"x": torch.ones(2, 3), "stack": tensordict.NonTensorStack("p", "q")},
            "pair": Pair(first=torch.ones(2), note="n", batch_size=[2]),
            "typed": Typed(eta=torch.ones(2), batch_size=[2]),
            "lazy": tensordict.lazy_stack(
                [tensordict.TensorDict({"v": torch.ones(n)}) for n in (1, 2)]
            ),
        },
        batch_size=[2],
    )
    for _ in range(rounds):
        assert paths(tree) == [
            ("a.b",),
            ("lazy", 0, "v"),
            ("lazy", 1, "v"),
            ("nested", "stack", 0),
            ("nested", "stack", 1),
            ("nested", "x"),
            ("pair", "first"),
            ("pair", "note"),
            ("text",),
            ("typed", "eta"),
        ]
        values = {path: leaf for path, leaf in read_tree(tree) if isinstance(leaf, str)}
        assert values == {
            ("nested", "stack", 0): "p",
            ("nested", "stack", 1): "q",
            ("pair", "note"): "n",
            ("text",): "hello",
        }
        # A predicate chooses among tensors.
        assert ("text",) not in paths(tree, leaves=lambda path, leaf: True)
    assert paths(tree["pair"]) == [("first",), ("note",)]
    assert read_tree([tensordict.NonTensorData("x")]) == [((0,), "x")]


@pytest.mark.parametrize("rounds", (1, 3))
def test_modules(rounds):
    module = torch.nn.Sequential(
        torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False)
    )
    module.register_buffer("running", torch.ones(2))
    params = tensordict.TensorDictParams(tensordict.TensorDict.from_module(module))
    for _ in range(rounds):
        expected = [("0", "bias"), ("0", "weight"), ("2", "weight")]
        assert paths(module) == expected
        assert paths({"m": module}) == [("m", *path) for path in expected]
        assert set(expected) <= set(paths(params))


def test_the_values_are_those_of_now():
    """A second walk follows the record of the first, and must not return its leaves."""
    tree = tensordict.TensorDict({"a": leaf(1), "b": {"c": leaf(2)}})
    assert [t.item() for _, t in read_tree(tree)] == [1, 2]
    tree["b", "c"] = leaf(3)
    tree["a"] = leaf(4)
    assert [t.item() for _, t in read_tree(tree)] == [4, 3]


def test_changes_of_structure_are_seen():
    tree = {"a": leaf(1), "b": {"c": leaf(2)}}
    assert paths(tree) == [("a",), ("b", "c")]
    tree["b"]["d"] = leaf(3)
    assert paths(tree) == [("a",), ("b", "c"), ("b", "d")]
    del tree["a"]
    assert paths(tree) == [("b", "c"), ("b", "d")]
    tree["b"] = leaf(5)
    assert paths(tree) == [("b",)]
    tree["b"] = [leaf(5)]
    assert paths(tree) == [("b", 0)]
    tree["b"] = (leaf(5), leaf(6))
    assert paths(tree) == [("b", 0), ("b", 1)]
    tree["b"] = None
    assert read_tree(tree) == [(("b",), None)]
    tree["b"] = leaf(7)
    assert read_tree(tree) == [(("b",), tree["b"])]
    tree[0] = tree.pop("b")
    assert paths(tree) == [(0,)]
    tree["0"] = tree.pop(0)
    assert paths(tree) == [("0",)]


def test_equal_keys_that_are_other_objects():
    for suffix in ("a", "b"):
        names = ["".join(("key", suffix)) for _ in range(2)]
        assert names[0] is not names[1]
        assert paths({names[0]: leaf()}) == paths({names[1]: leaf()})
    assert paths({10**6: leaf()}) == paths({int("1000000"): leaf()}) == [(10**6,)]
    assert paths({10**6 + 1: leaf()}) == [(10**6 + 1,)]


def test_many_trees_by_turns():
    trees = [{f"k{i}": [leaf(j) for j in range(i % 5 + 1)]} for i in range(200)]
    for _ in range(3):
        for i, tree in enumerate(trees):
            assert paths(tree) == [(f"k{i}", j) for j in range(i % 5 + 1)]


def test_random_trees_against_a_plain_walk():
    def build(generator, depth):
        kind = int(torch.randint(0, 4 if depth < 4 else 1, (), generator=generator))
        size = int(torch.randint(0, 4, (), generator=generator))
        if kind == 0:
            return leaf(float(torch.rand((), generator=generator)))
        if kind == 1:
            return {f"n{i}": build(generator, depth + 1) for i in range(size)}
        if kind == 2:
            return [build(generator, depth + 1) for _ in range(size)]
        return tuple(build(generator, depth + 1) for _ in range(size))

    def walk(tree, path=()):
        if isinstance(tree, torch.Tensor):
            yield path, tree
        else:
            items = tree.items() if isinstance(tree, dict) else enumerate(tree)
            for key, value in items:
                yield from walk(value, (*path, key))

    generator = torch.Generator().manual_seed(20)
    for _ in range(200):
        tree = build(generator, 0)
        # Positions and names never stand side by side here, so tuples can be compared.
        expected = sorted(walk(tree), key=lambda item: item[0])
        for _ in range(2):
            read = read_tree(tree)
            assert [path for path, _ in read] == [path for path, _ in expected]
            assert all(a is b for (_, a), (_, b) in zip(read, expected))


def test_predicate():
    tree = {"a": torch.ones(2), "b": torch.ones(3), "c": 7}
    take = lambda path, value: isinstance(value, torch.Tensor) and value.numel() == 3  # noqa: E731
    for _ in range(3):
        assert paths(tree, leaves=take) == [("b",)]
    assert paths(tree, leaves=lambda path, value: path in {("a",), ("b",)}) == [("a",), ("b",)]


def test_a_predicate_that_reads_trees():
    def take(path, value):
        for i in range(100):
            paths({f"other{i}": leaf()})
        return path == ("b",)

    tree = {"a": leaf(), "b": leaf()}
    for _ in range(3):
        assert paths(tree, leaves=take) == [("b",)]


@pytest.mark.parametrize(
    "tree, path, word",
    (
        ({"a": {"b": 3}}, "a.b", "int"),
        ({"a": ["text"]}, "a[0]", "str"),
        ({"a": {None: leaf()}}, "a", "None"),
        ({"a": {1.5: leaf()}}, "a", "1.5"),
        ({"a": {True: leaf()}}, "a", "True"),
        ({"a": {2**70: leaf()}}, "a", "64 bits"),
        ({"a": {"\ud800": leaf()}}, "a", "UTF-8"),
        ({"a": {leaf}}, "a", "set"),
    ),
    ids=str,
)
def test_what_cannot_be_read(tree, path, word):
    for _ in range(2):
        with pytest.raises(leafpack.UnsupportedError) as error:
            read_tree(tree)
        assert error.value.path == path
        assert word in str(error.value) and path in str(error.value)
        assert isinstance(error.value, TypeError)


def test_depth_is_limited():
    deep = leaf()
    for _ in range(500):
        deep = [deep]
    assert paths(deep) == [(0,) * 500]
    for make in (lambda t: {"k": t}, lambda t: [t], lambda t: (t,)):
        deep = leaf()
        for _ in range(5000):
            deep = make(deep)
        with pytest.raises((leafpack.UnsupportedError, ValueError), match="deep"):
            read_tree(deep)
        # Python's own destructor of nested tuples copes; nothing of the walk holds on to them.
        del deep
        gc.collect()


def test_a_tree_that_contains_itself():
    tree = []
    tree.append(tree)
    module = torch.nn.Module()
    module.child = torch.nn.Module()
    object.__setattr__(module.child, "_modules", {"parent": module})
    for cyclic in (tree, module):
        with pytest.raises(leafpack.UnsupportedError, match="contains itself"):
            read_tree(cyclic)


def test_a_path_that_comes_twice():
    class Odd(torch.nn.Module):
        pass

    module = Odd()
    module.weight = torch.nn.Parameter(torch.ones(1))
    module._modules["weight"] = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="weight"):
        read_tree(module)


def test_wrapper_tensors_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3)
    for tree in ({"x": torch.ones(3)}, {"x": fake}, {"x": fake}):
        if tree["x"] is fake:
            with pytest.raises(leafpack.UnsupportedError):
                read_tree(tree)
        else:
            read_tree(tree)


def test_nothing_is_kept_alive():
    import weakref

    tree = {"a": torch.ones(3)}
    alive = weakref.ref(tree["a"])
    read_tree(tree)
    walk_tree(tree)
    del tree
    gc.collect()
    assert alive() is None
