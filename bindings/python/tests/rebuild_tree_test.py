"""From a tree to its nodes and leaves and back: every kind of tree, without any communication."""

import collections
import json
import sys

import pytest
import tensordict
import torch

import leafpack
from leafpack import _nodes
from leafpack._C import describe_nodes, read_tree, rebuild_tree


@tensordict.tensorclass
class Pair:
    first: torch.Tensor
    note: str


class Typed(tensordict.TypedTensorDict):
    eta: torch.Tensor


def leaf(value=0.0, shape=(1,)):
    return torch.full(shape, float(value))


def check(tree):
    """Rebuilds `tree` and asserts that nothing that is read of it has changed. Returns what was built."""
    built = rebuild_tree(tree)
    before, after = (read_tree(t, plain_values=True) for t in (tree, built))
    assert [path for path, _ in before] == [path for path, _ in after]
    for (path, a), (_, b) in zip(before, after):
        assert type(a) is type(b), path
        if isinstance(a, torch.Tensor):
            assert a.data_ptr() == b.data_ptr() and torch.equal(a, b), path
        else:
            assert a == b, path
    assert describe_nodes(tree) == describe_nodes(built)
    return built


def test_dicts_lists_and_tuples():
    tree = {
        "a.b": leaf(1),
        "": {"nothing": {}, "x": [leaf(2), (leaf(3), [None, {}]), [], ()]},
        7: leaf(4),
        -3: (leaf(5),),
    }
    built = check(tree)
    assert type(built) is dict and type(built[""]["x"]) is list
    assert type(built[""]["x"][1]) is tuple and built[""]["x"][1][1] == [None, {}]
    assert built[""]["x"][2:] == [[], ()] and built[""]["nothing"] == {}
    assert list(built) == [-3, 7, "", "a.b"]  # canonical order


@pytest.mark.parametrize("tree", ({}, [], (), {"a": {"b": []}}), ids=str)
def test_trees_without_leaves(tree):
    assert check(tree) == tree


def test_containers_become_plain():
    point = collections.namedtuple("point", "x y")
    tree = [point(leaf(1), leaf(2)), collections.OrderedDict(k=leaf(3)), collections.UserDict()]
    built = rebuild_tree(tree)
    assert [type(item) for item in built] == [tuple, dict, dict]


def test_one_leaf():
    tensor = leaf(3)
    assert rebuild_tree(tensor) is tensor
    assert rebuild_tree("text") == "text" and rebuild_tree(None) is None


VALUES = ("", "text", "\N{SNOWMAN}", 0, -(2**63), 2**63 - 1, 0.5, float("inf"), True, False, b"", b"\xff\x00")


def test_plain_values():
    tree = {"values": list(VALUES), "in": {"a": 3, "b": "x", "t": leaf()}, "none": None}
    for _ in range(3):
        built = check(tree)
        assert built["values"] == list(VALUES)
        assert [type(v) for v in built["values"]] == [type(v) for v in VALUES]
    tree["in"]["a"] = 4
    assert check(tree)["in"]["a"] == 4
    tree["in"]["a"] = "four"
    assert check(tree)["in"]["a"] == "four"
    tree["in"]["a"] = leaf(4)
    assert torch.equal(check(tree)["in"]["a"], leaf(4))


class Odd(str):
    pass


@pytest.mark.parametrize(
    "value, word",
    (
        (object(), "object"),
        (2**63, "64 bits"),
        (Odd("x"), "Odd"),
        (1j, "complex"),
        ("\ud800", "UTF-8"),
        ({1, 2}, "set"),
        (torch.float32, "dtype"),
        (bytearray(b"x"), "bytearray"),
    ),
    ids=ascii,
)
def test_other_objects_are_refused(value, word):
    trees = [{"a": [leaf(), value]}, {"a": leaf(), "b": [["x", value]]}]
    if not isinstance(value, set):  # tensordict makes a tensor or a list of some
        inside = tensordict.TensorDict({"a": leaf()})
        inside.set_non_tensor("v", value)
        trees.append({"td": inside})
    for tree in trees:
        for _ in range(2):
            with pytest.raises(leafpack.UnsupportedError, match=word) as error:
                read_tree(tree, plain_values=True)
            assert error.value.path in ("a[1]", "b[0][1]", "td.v")


def test_lists_in_a_non_tensor_entry():
    tree = tensordict.TensorDict({"a": leaf()})
    tree.set_non_tensor("v", ["x", [1, [2.5, None]], b"y"])
    for _ in range(2):
        assert check(tree).get_non_tensor("v") == ["x", [1, [2.5, None]], b"y"]
    tree.set_non_tensor("v", ("a", "tuple"))
    with pytest.raises(leafpack.UnsupportedError, match="tuple"):
        read_tree(tree)
    deep = []
    for _ in range(70):
        deep = [deep]
    tree.set_non_tensor("v", deep)
    with pytest.raises(leafpack.UnsupportedError, match="deep"):
        read_tree(tree)


def test_values_of_tensordicts_are_read_and_those_of_dicts_refused_where_nothing_is_sent():
    tree = {"td": tensordict.TensorDict({"a": leaf(), "s": "text"})}
    assert read_tree(tree)[1] == (("td", "s"), "text")
    assert [path for path, _ in read_tree(tree, leaves=lambda path, leaf: True)] == [("td", "a")]
    tree["s"] = "text"
    for _ in range(2):
        with pytest.raises(leafpack.UnsupportedError) as error:
            read_tree(tree)
        assert error.value.path == "s"
        assert len(read_tree(tree, plain_values=True)) == 3


def tensordict_tree():
    return tensordict.TensorDict(
        {
            "a.b": torch.ones(2),
            "text": "hello",
            "nested": {"x": torch.ones(2, 3), "stack": tensordict.NonTensorStack("p", "q")},
            "pair": Pair(first=torch.ones(2), note="n", batch_size=[2]),
            "typed": Typed(eta=torch.ones(2), batch_size=[2]),
            "lazy": tensordict.lazy_stack(
                [tensordict.TensorDict({"v": torch.ones(n), "s": str(n)}) for n in (1, 2)]
            ),
            "empty": tensordict.TensorDict({}, batch_size=[2, 5]),
        },
        batch_size=[2],
    )


def test_tensordicts():
    tree = tensordict_tree()
    built = check(tree)
    assert type(built) is tensordict.TensorDict and built.batch_size == (2,)
    assert built["text"] == "hello" and built["nested", "stack"] == ["p", "q"]
    assert type(built["pair"]) is Pair and built["pair"].note == "n"
    assert type(built["typed"]) is Typed and built["typed"].batch_size == (2,)
    assert type(built["lazy"]) is tensordict.LazyStackedTensorDict
    assert built["lazy"].tensordicts[1]["s"] == "2"
    assert built["empty"].batch_size == (2, 5)
    assert set(built.keys(True, True)) == set(tree.keys(True, True))
    # It is a tensordict like any other.
    assert torch.equal((built.select("a.b", ("nested", "x")) + 1)["a.b"], torch.full((2,), 2.0))
    assert built[0].batch_size == () and built.clone()["text"] == "hello"


def test_names_device_and_stack_dimension():
    tree = tensordict.TensorDict(
        {"x": torch.ones(2, 3), "in": {"y": torch.ones(2, 3, 4)}},
        batch_size=[2, 3],
        names=["time", None],
        device="cpu",
    )
    built = check(tree)
    assert built.names == ["time", None] and built["in"].names == ["time", None]
    assert built.device == torch.device("cpu")
    stack = tensordict.lazy_stack([tree.clone(), tree.clone()], 1)
    built = check(stack)
    assert built.stack_dim == 1 and built.batch_size == (2, 2, 3)
    assert check(tensordict.TensorDict({}, batch_size=[4])).batch_size == (4,)


def test_tensorclasses_params_and_modules():
    pair = Pair(first=torch.ones(2, 3), note="n", batch_size=[2])
    built = check(pair)
    assert type(built) is Pair and built.note == "n" and built.batch_size == (2,)
    lazy = tensordict.lazy_stack([pair, pair.clone()], 0)
    built = check(lazy)
    assert type(built) is Pair and built.batch_size == (2, 2)
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    built = rebuild_tree(module)
    assert set(built) == {"0", "1", "2"} and built["1"] == {}
    assert built["0"]["weight"] is module[0].weight
    params = tensordict.TensorDictParams(tensordict.TensorDict.from_module(module))
    built = rebuild_tree(params)
    assert type(built) is tensordict.TensorDictParams
    assert torch.equal(built["0", "weight"], module[0].weight)


def test_leafpack_trees():
    tree = leafpack.TensorDict(
        {"a": torch.ones(3, 2), "in": {"s": "text", 0: torch.ones(3), "none": None}}, batch_size=[3]
    )
    assert tree["in", "s"] == "text" and tree.to_dict()["in"]["s"] == "text"
    built = check(tree)
    assert type(built) is leafpack.TensorDict and built.batch_size == (3,)
    built = check({"native": tree, "x": leaf()})
    assert type(built["native"]) is leafpack.TensorDict and built["native"]["in", "none"] is None


def test_classes_that_this_process_does_not_know():
    note = json.dumps({"class": ["no.such.module:Thing", "os:system", "torch.nn:Linear"]}).encode()
    built = _nodes.build(note, (2,), {"first": torch.ones(2)}, [], False)
    assert type(built) is tensordict.TensorDict
    assert "no.such.module" not in sys.modules
    note = json.dumps({"class": [f"{__name__}:Pair"]}).encode()
    assert type(_nodes.build(note, (2,), {"first": torch.ones(2)}, [], False)) is Pair


@pytest.mark.parametrize(
    "note, children, values, stacked",
    (
        (b"[1]", {}, [], False),
        (b"{", {}, [], False),
        (b'{"stack": 5}', {0: tensordict.TensorDict({}, [2])}, [], True),
        (b'{"stack": "0"}', {0: tensordict.TensorDict({}, [2])}, [], True),
        (b'{"stack": 0}', {"a": tensordict.TensorDict({}, [2])}, [], False),
        (b'{"stack": 0}', {0: "x"}, [0], True),
        (b"", {0: torch.ones(2)}, [], True),
        (b'{"names": ["a", "b"]}', {}, [], False),
        (b'{"names": [3]}', {}, [], False),
        (b'{"class": [3]}', {}, [], False),
        (b'{"batch": "2"}', {}, [], False),
        (b'{"batch": [-1]}', {}, [], False),
        (b'{"batch": [3]}', {"x": torch.ones(2)}, [], False),
    ),
    ids=str,
)
def test_notes_that_contradict_themselves(note, children, values, stacked):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        _nodes.build(note, (2,), children, values, stacked)
