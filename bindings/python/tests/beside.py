"""The same trees as leafpack.TensorDict and as tensordict.TensorDict, and how results of both are compared."""

import tensordict
import torch

import leafpack

OURS, THEIRS = leafpack.TensorDict, tensordict.TensorDict


def matrix(*shape):
    count = torch.Size(shape).numel()
    return torch.arange(1.0, 1.0 + count).reshape(shape) / 2


# Children and batch size. Nodes get the batch size of the tree.
TREES = {
    "flat": lambda: ({"b": matrix(4, 3), "a": matrix(4)}, [4]),
    "nested": lambda: (
        {"x": matrix(4, 3, 2), "in": {"y": matrix(4, 3), "deep": {"z": matrix(4, 3, 1)}}},
        [4, 3],
    ),
    "single": lambda: ({"x": matrix(1, 2, 1), "in": {"y": matrix(1, 2, 1, 3)}}, [1, 2, 1]),
    "no batch": lambda: ({"x": matrix(2), "in": {"y": matrix(3, 2), "z": matrix()}}, []),
}
BATCHED = ("flat", "nested", "single")
ALL = tuple(TREES)


def _copied(children):
    return {k: _copied(v) if isinstance(v, dict) else v.clone() for k, v in children.items()}


def both(name):
    children, batch_size = TREES[name]()
    return OURS(_copied(children), batch_size), THEIRS(_copied(children), batch_size)


def is_tree(value):
    return isinstance(value, (OURS, THEIRS))


def leaves_of(tree):
    """Tensors and plain values of a tree of either kind, by path."""
    options = {} if isinstance(tree, OURS) else {"is_leaf": _is_leaf}
    return {
        key if isinstance(key, tuple) else (key,): _plain(leaf)
        for key, leaf in tree.items(include_nested=True, leaves_only=True, **options)
    }


def _is_leaf(cls):
    return tensordict.is_non_tensor(cls) or not issubclass(cls, tensordict.TensorDictBase)


def _plain(leaf):
    return leaf.data if tensordict.is_non_tensor(leaf) else leaf


def storages(tree):
    return {
        leaf.untyped_storage().data_ptr()
        for leaf in leaves_of(tree).values()
        if isinstance(leaf, torch.Tensor)
    }


def assert_same(ours, theirs, where="result", views=None):
    """Equal keys, batch sizes, dtypes and values; views share storage exactly when tensordict's do."""
    if is_tree(theirs):
        assert isinstance(ours, OURS), where
        assert ours.batch_size == theirs.batch_size, where
        ours_here, theirs_here = leaves_of(ours), leaves_of(theirs)
        assert ours_here.keys() == theirs_here.keys(), where
        for key, leaf in ours_here.items():
            assert_same(leaf, theirs_here[key], f"{where}: {key}")
            if views is not None and isinstance(leaf, torch.Tensor):
                shared = [
                    t.untyped_storage().data_ptr() in known
                    for t, known in zip((leaf, theirs_here[key]), views)
                ]
                assert shared[0] == shared[1], f"{where}: {key} shares storage: {shared}"
        nodes = [k for k in theirs.keys(True) if is_tree(theirs[k])]
        for key in nodes:
            assert ours[key].batch_size == theirs[key].batch_size, f"{where}: {key}"
    elif isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torch.Tensor) and ours.dtype == theirs.dtype, where
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=where)
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs), where
        for i, pair in enumerate(zip(ours, theirs)):
            assert_same(*pair, f"{where}[{i}]", views)
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}[{key}]", views)
    else:
        assert ours == theirs, where
