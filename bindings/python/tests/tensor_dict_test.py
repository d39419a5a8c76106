"""leafpack.TensorDict as a mapping."""

import pytest
import tensordict
import torch

import leafpack
from leafpack import TensorDict


def test_set_get_erase():
    tree = TensorDict()
    x, y = torch.ones(2), torch.ones(3)
    assert tree.set("a", x) is tree
    tree["b", "c"] = y
    tree["b", 3, "a.b"] = None
    assert tree["a"] is x and tree.get(("b", "c")) is y and tree["b", 3, "a.b"] is None
    assert ("b", "c") in tree and "b" in tree and ("b", "d") not in tree and "z" not in tree
    assert tree.get("z", 5) == 5 and tree.get(("b", "c", "d"), None) is None
    assert tree.num_leaves == 3
    del tree["b", "c"]
    tree.erase("a")
    assert tree.keys(True, True) == [("b", 3, "a.b")]
    tree.clear()
    assert tree.num_leaves == 0 and tree.is_empty()


def test_missing_and_wrong_keys():
    tree = TensorDict({"a": torch.ones(2)})
    for key in ("b", ("a2", "c"), ("b", 0)):
        with pytest.raises(KeyError, match=str(key[0] if isinstance(key, tuple) else key)):
            tree[key]
        with pytest.raises(KeyError):
            del tree[key]
    with pytest.raises((KeyError, ValueError)):
        tree["a", "below"]
    with pytest.raises(ValueError):
        tree["a", "below"] = torch.ones(1)
    for key in (1.5, None, ("a", b"b"), True):
        with pytest.raises(TypeError):
            tree.set(key, torch.ones(1))
    with pytest.raises(ValueError):
        tree.set((), torch.ones(1))
    with pytest.raises(TypeError):
        tree["t"] = object()
    assert tree.keys() == ["a"]


def test_plain_values():
    tree = TensorDict({"a": torch.ones(2), "s": "text", "in": {"n": 3, "l": [1.5, True]}})
    assert tree["s"] == "text" and tree["in", "n"] == 3 and tree["in", "l", 1] is True
    tree["s"] = b"bytes"
    assert tree["s"] == b"bytes" and "b\"bytes\"" in repr(tree)
    assert tree.num_leaves == 5 and tree.values(True, True)[1:4] == [1.5, True, 3]
    other = TensorDict({"a": torch.ones(2), "s": "text", "in": {"n": 3, "l": [1.5, True]}})
    assert not tree.same_layout(other)
    tree["s"] = "text"
    assert tree.same_layout(other) and tree.layout_digest() == other.layout_digest()


def test_order_and_views():
    tree = TensorDict({"b": torch.ones(1), "a": {"z": torch.ones(2), "y": [torch.ones(3)]}})
    assert tree.keys() == ["a", "b"]
    assert tree.keys(True, True) == [("a", "y", 0), ("a", "z"), "b"]
    assert [leaf.numel() for leaf in tree.values(True, True)] == [3, 2, 1]
    assert dict(tree.items())["b"] is tree["b"]


def test_nodes_are_handles():
    tree = TensorDict({"a": {"b": torch.ones(1)}})
    node = tree["a"]
    node["c"] = torch.ones(2)
    assert ("a", "c") in tree and node.is_same(tree["a"]) and not node.is_same(tree)
    other = TensorDict({"shared": node})
    other["shared", "d"] = torch.ones(1)
    assert ("a", "d") in tree
    with pytest.raises(ValueError):
        node["up"] = tree


def test_batch_size():
    tree = TensorDict({"a": torch.ones(4, 2)}, batch_size=[4])
    assert tree.batch_size == torch.Size([4]) and isinstance(tree.batch_size, torch.Size)
    with pytest.raises(ValueError, match="b"):
        tree["b"] = torch.ones(3)
    assert TensorDict(batch_size=3).batch_size == (3,)
    with pytest.raises(ValueError):
        TensorDict(batch_size=[-1])
    with pytest.raises(ValueError):
        TensorDict({"n": {"a": torch.ones(3)}}, batch_size=[4])


def test_from_dict_and_tensordict():
    source = {"a": torch.ones(2), "b": {"c": torch.ones(2)}, 0: torch.ones(2)}
    tree = TensorDict.from_dict(source)
    back = tree.to_dict()
    assert back.keys() == source.keys() and back["a"] is source["a"]
    assert back["b"]["c"] is source["b"]["c"]
    theirs = tensordict.TensorDict({"x": torch.ones(2, 3), "n": {"y": torch.ones(2)}}, [2])
    mine = TensorDict.from_tensordict(theirs)
    assert mine.batch_size == torch.Size([2])
    assert mine["x"] is theirs["x"] and mine["n", "y"] is theirs["n", "y"]


def test_layouts():
    a = TensorDict({"x": torch.ones(2, 3), "y": torch.ones(1)})
    b = TensorDict({"y": torch.zeros(1), "x": torch.zeros(3, 2).t()})
    c = TensorDict({"x": torch.ones(3, 2), "y": torch.ones(1)})
    assert a.same_layout(b) and a.layout_digest() == b.layout_digest()
    assert len(a.layout_digest()) == 32
    assert a.layout_difference(b) is None
    assert not a.same_layout(c)
    for word in ("x", "[2, 3]", "[3, 2]", "self", "other"):
        assert word in a.layout_difference(c)


def test_repr():
    text = repr(TensorDict({"a": {"b": torch.ones(2, 3)}, "n": None}))
    assert (
        text == "leafpack.TensorDict(batch_size=[], 2 leaves:\n  a.b: float32 [2, 3],\n  n: None)"
    )
    assert repr(TensorDict()) == "leafpack.TensorDict(batch_size=[], 0 leaves)"
    assert repr(TensorDict({str(i): None for i in range(99)})).endswith("...)")


def test_a_dict_that_contains_itself():
    cyclic = {}
    cyclic["again"] = cyclic
    with pytest.raises((ValueError, TypeError)):
        TensorDict(cyclic)
    assert isinstance(leafpack.UnsupportedError("x"), TypeError)
