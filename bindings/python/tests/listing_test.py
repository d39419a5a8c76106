"""keys, values and items of trees that change between the calls, and select by every kind of key."""

import gc
import random

import pytest
import torch

from beside import OURS


def listed(children, prefix=(), nested=True, leaves_only=False):
    """What keys and items must give for nested dicts with str keys."""
    result = []
    for key in sorted(children, key=str.encode):
        value, path = children[key], (*prefix, key)
        is_node = isinstance(value, dict)
        if not (is_node and leaves_only):
            result.append((path if prefix else key, value))
        if is_node and nested:
            result += listed(value, path, nested, leaves_only)
    return result


def check(tree, children):
    for nested in (False, True):
        for leaves_only in (False, True):
            expected = listed(children, (), nested, leaves_only)
            keys = [key for key, _ in expected]
            assert tree.keys(nested, leaves_only) == keys
            items = tree.items(nested, leaves_only)
            assert [key for key, _ in items] == keys
            values = tree.values(nested, leaves_only)
            for (_, value), (_, item), other in zip(expected, items, values, strict=True):
                if isinstance(value, dict):
                    assert item.is_same(other) and item.keys() == [k for k, _ in listed(value, (), False)]
                elif isinstance(value, torch.Tensor):
                    assert item is value and other is value
                else:
                    assert item == value and other == value


NAMES = ["a", "b", "c.d", "", "é", "x" * 100, "self"]


@pytest.mark.parametrize("seed", range(8))
def test_lists_follow_every_change(seed):
    rng = random.Random(seed)
    trees = [(OURS(), {}) for _ in range(3)]
    for step in range(150):
        tree, children = rng.choice(trees)
        path = []
        while rng.random() < 0.6:
            nodes = [key for key, value in children.items() if isinstance(value, dict)]
            if not nodes:
                break
            path.append(rng.choice(nodes))
            tree, children = tree[path[-1]], children[path[-1]]
        key = rng.choice(NAMES)
        action = rng.randrange(6)
        if action == 0 and children:
            key = rng.choice(sorted(children))
            tree.del_(key)
            del children[key]
        elif action == 1:
            tree[key], children[key] = OURS(), {}
        elif action == 2:
            tree[key] = children[key] = step
        elif action == 3 and children and key not in children:
            old = rng.choice(sorted(children))
            tree.rename_key_(old, key)
            children[key] = children.pop(old)
        else:
            children[key] = torch.ones(1)
            tree[key] = children[key]
        for pair in trees:
            check(*pair)


def test_many_trees_in_turn():
    pairs = []
    for i in range(40):
        children = {f"k{i}": torch.ones(1), "in": {f"l{i % 3}": torch.ones(1)}}
        pairs.append((OURS(children), children))
    for _ in range(3):
        for pair in pairs:
            check(*pair)
    big = {f"k{i}": {f"l{j}": torch.ones(1) for j in range(100)} for i in range(800)}
    tree = OURS(big)
    assert len(tree.keys(True, True)) == len(tree.keys(True, True)) == 80000
    check(*pairs[0])


def test_lists_belong_to_the_caller():
    tree = OURS({"a": torch.ones(1), "b": {"c": torch.ones(1)}})
    keys = tree.keys(True)
    keys.append("mine")
    assert tree.keys(True) == ["a", "b", ("b", "c")]
    gc.collect()
    assert gc.isenabled()
    first = tree.keys(True, True)
    del tree
    gc.collect()
    assert first == ["a", ("b", "c")]


def test_garbage_that_changes_the_tree():
    """Collecting garbage may run code; it must not run while a tree is walked."""
    tree = OURS({f"k{i}": torch.ones(1) for i in range(2000)})

    class Changes:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            if len(tree.keys()) > 1000:
                tree.del_(tree.keys()[-1])

    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(30):
            Changes()
            items = tree.items()
            assert len(items) >= 1000 and all(isinstance(value, torch.Tensor) for _, value in items)
            assert len(tree.values()) <= len(items)
    finally:
        gc.set_threshold(*old)
    assert gc.isenabled()


def test_select_by_every_kind_of_key():
    class Path(tuple):
        """A tuple of another class is a path too."""

    tree = OURS({"a": torch.ones(1), "n": {"x": torch.ones(1), "y": torch.ones(1), "d": {"z": torch.ones(1)}}})
    tree["l"] = [torch.ones(1), torch.zeros(1)]
    part = tree.select(("n", "y"), "a", ("n", "d", "z"), Path(("n", "x")), ("l", 1))
    assert part.keys(True, True) == ["a", ("l", 1), ("n", "d", "z"), ("n", "x"), ("n", "y")]
    assert part["n", "y"] is tree["n", "y"] and not part["n"].is_same(tree["n"])
    assert tree.select("n", ("n", "x"))["n"].is_same(tree["n"])
    assert tree.select(("n", "x"), "n")["n"].is_same(tree["n"])
    assert tree.select(("n", "no"), ("a", "below"), "none", strict=False).keys(True) == ["n"]
    for key, error in ((("n", "no"), KeyError), (("a", "below"), KeyError), ((), ValueError), (1.5, TypeError)):
        with pytest.raises(error):
            tree.select("a", key)
    with pytest.raises(TypeError, match="n"):
        tree.select(("n", 1.5))
