"""Functions that are handed to a tree and change it while it is walked."""

import pytest
import torch

import leafpack

SIZE = 100


def _tree():
    return leafpack.TensorDict({"in": {f"k{i}": torch.full((8,), i) for i in range(SIZE)}, "x": torch.ones(2)})


def _changing(tree, calls):
    def change(*arguments):
        calls.append(len(calls))
        tree["in"] = {"q": torch.zeros(8)}  # frees the node that is walked
        for i in range(20):
            tree[f"new{len(calls)}.{i}"] = torch.zeros(1)
        return arguments[-1] + 1

    return change


@pytest.mark.parametrize(
    "walk",
    (
        lambda t, f: t.apply(f),
        lambda t, f: t.apply(f, _tree()),
        lambda t, f: t.named_apply(f),
        lambda t, f: t.named_apply(f, nested_keys=True),
    ),
    ids=("apply", "two trees", "named_apply", "nested_keys"),
)
def test_a_new_tree_is_of_what_the_old_one_was(walk):
    tree, calls = _tree(), []
    result = walk(tree, _changing(tree, calls))
    assert len(calls) == SIZE + 1 and len(tree.keys()) == 2 + 20 * len(calls)
    expected = _tree() + 1
    assert sorted(result.keys()) == ["in", "x"] and result.equal(expected)


@pytest.mark.parametrize(
    "walk", (lambda t, f: t.apply_(f), lambda t, f: t.apply(f, inplace=True)), ids=("apply_", "inplace")
)
def test_in_place_there_is_nowhere_to_put_it(walk):
    tree, calls = _tree(), []
    with pytest.raises(KeyError, match="there is no in.k0"):
        walk(tree, _changing(tree, calls))
    assert tree["in", "q"].unique().item() == 0 and tree["x"].unique().item() == 1


def test_keys_that_are_dropped_in_the_walk():
    tree = _tree()
    last = f"k{SIZE - 1}"

    def drop(x):
        tree["in"].pop(last, None)
        return x * 2

    assert tree.apply(drop)["in", last][0].item() == 2 * (SIZE - 1)
    tree = _tree()
    with pytest.raises(KeyError, match=f"there is no in.{last}"):
        tree.apply_(drop)


@pytest.mark.parametrize("method", ("apply", "named_apply", "apply_"))
def test_a_stack_that_grows_in_the_walk(method):
    stack = leafpack.LazyStack(*[leafpack.TensorDict({"a": torch.ones(n)}) for n in (1, 2)])

    def grow(*arguments):
        stack.append(leafpack.TensorDict({"a": torch.zeros(9)}))
        return arguments[-1] + 1

    result = getattr(stack, method)(grow)
    assert len(stack) == 4
    assert [t["a"].shape[0] for t in result.tensordicts] == ([1, 2, 9, 9] if method == "apply_" else [1, 2])
    assert result.tensordicts[1]["a"].tolist() == [2, 2]
