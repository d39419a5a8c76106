"""Trees from and to numpy, DLPack, pytrees, dataclasses, named tuples and modules."""

import collections
import dataclasses
import pickle

import numpy
import pytest
import tensordict
import torch

import leafpack

from beside import OURS, THEIRS, assert_same


def _address(x):
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.ctypes.data


def test_numpy_shares_memory():
    array = numpy.arange(6.0).reshape(3, 2)
    tree = OURS.from_any({"a": array, "n": [array[0], 3, "s"]})
    assert _address(tree["a"]) == _address(array) and tree["n", 1] == 3 and tree["n", 2] == "s"
    tree["a"][0, 0] = 7
    assert array[0, 0] == 7
    back = OURS({"a": tree["a"], "n": {"b": torch.ones(2)}, "s": "text"}).numpy()
    assert back["a"].ctypes.data == array.ctypes.data and back["n"]["b"].tolist() == [1, 1]
    assert back["s"] == "text"


class OnlyDLPack:
    """An array of some other library."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **kwargs):
        return self.tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_dlpack_shares_memory():
    tensor = torch.arange(4.0)
    tree = OURS.from_any({"a": OnlyDLPack(tensor)})
    assert tree["a"].data_ptr() == tensor.data_ptr()
    assert numpy.from_dlpack(tree["a"]).ctypes.data == tensor.data_ptr()


def test_pytrees():
    x, y = torch.ones(2), torch.zeros(3)
    pytree = {"a": x, "l": [y, {"b": x}], "t": (y, y)}
    tree = OURS.from_pytree(pytree)
    assert tree["l", 1, "b"] is x
    back = tree.to_pytree()
    assert back["a"] is x and back["l"][1]["b"] is x and len(back["t"]) == 2
    leaves, spec = torch.utils._pytree.tree_flatten(back)
    again = OURS.from_pytree(torch.utils._pytree.tree_unflatten(leaves, spec))
    assert again.same_layout(tree)


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    inner: object


Pair = collections.namedtuple("Pair", ["first", "second"])


def test_classes():
    x = torch.ones(2, 3)
    tree = OURS.from_dataclass(Point(x, Point(x, None)), auto_batch_size=True)
    assert tree["inner", "x"] is x and tree["inner", "inner"] is None and tree.batch_size == (2, 3)
    tree = OURS.from_namedtuple(Pair(x, Pair(x, x)), batch_size=[2])
    assert tree["second", "first"] is x
    named = tree.to_namedtuple()
    assert named.second.first is x
    assert OURS.from_tuple((x, x)).keys() == [0, 1]
    assert OURS.from_any(THEIRS({"a": x}, [2])).batch_size == (2,)
    with pytest.raises(TypeError, match="int"):
        OURS.from_any(3)


def test_structured_arrays():
    kind = numpy.dtype([("a", "f4"), ("b", "i8", (2,)), ("n", [("c", "f8")])])
    array = numpy.zeros(3, dtype=kind)
    array["a"] = [1, 2, 3]
    array["n"]["c"] = 5
    ours, theirs = OURS.from_struct_array(array), THEIRS.from_struct_array(array)
    assert_same(ours.select("a", "b"), theirs.select("a", "b"))
    assert ours["n", "c"].tolist() == [5, 5, 5]
    back = ours.to_struct_array()
    assert back.dtype.names == ("a", "b", "n") and back["a"].tolist() == [1, 2, 3]
    assert (OURS.from_struct_array(back) == ours).all()
    with pytest.raises(TypeError, match="s"):
        ours.set("s", "text").to_struct_array()


def test_modules():
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    tree = OURS.from_module(module)
    assert tree["0", "weight"] is module[0].weight and ("1", "running_mean") in tree
    assert sorted(map(str, tree.keys(True, True))) == sorted(
        map(str, THEIRS.from_module(module).keys(True, True))
    )
    new = OURS({"0": {"weight": torch.zeros(3, 2)}})
    before = new.to_module(module)
    assert module[0].weight is new["0", "weight"]
    before.to_module(module)
    assert module[0].weight is tree["0", "weight"]
    new.to_module(module, inplace=True)
    assert module[0].weight is tree["0", "weight"] and module[0].weight.sum() == 0
    with pytest.raises(KeyError, match="9"):
        OURS({"9": {"weight": torch.zeros(1)}}).to_module(module)
    with pytest.raises(ValueError, match="shape"):
        OURS({"0": {"weight": torch.zeros(1)}}).to_module(module)


def test_gradients():
    x = torch.ones(2, requires_grad=True)
    tree = OURS({"a": x, "n": {"b": x * 2}})
    out = (tree * 3).sum(reduce=True)
    grads = torch.autograd.grad(out, tree, retain_graph=True)
    assert grads["a"].tolist() == [9, 9] and grads["n", "b"].tolist() == [3, 3]
    (tree * 3).sum().backward()
    assert x.grad.tolist() == [9, 9]
    tree.select("a").zero_grad()
    assert x.grad is None


def test_plain_answers():
    tree = OURS({"a": torch.ones(2), "s": "text", "n": {"k": 3}}, [2])
    assert tree.non_tensor_items() == [("s", "text")]
    assert tree.non_tensor_items(True) == [(("n", "k"), 3), ("s", "text")]
    assert tree.filter_non_tensor_data().keys(True, True) == ["a"]
    assert tree.sorted_keys == ["a", "n", "s"] and tree.depth == 1
    assert tree.get_non_tensor("s") == "text" and tree.entry_class("n") is OURS
    assert tree.data_ptr()["a"] == tree["a"].data_ptr()
    assert not tree.is_shared() and tree.clone().share_memory_().is_shared()
    swapped = OURS({"a": torch.ones(1), "b": torch.zeros(1)}).rename_keys({"a": "b", "b": "a"})
    assert swapped["a"].item() == 0 and swapped["b"].item() == 1


def test_reductions_that_tensordict_gets_wrong():
    """prod of tensordict 0.15 takes the first of several dimensions only, and forgets keepdim."""
    children = {"x": torch.full((2, 3, 2), 2.0)}
    ours = OURS(dict(children), [2, 3])
    assert ours.prod((0, 1))["x"].tolist() == [64, 64] and ours.prod((0, 1)).batch_size == ()
    assert ours.prod(keepdim=True)["x"].shape == (1, 1, 1)
    theirs = THEIRS(dict(children), [2, 3])
    assert theirs.prod((0, 1)).batch_size != () or theirs.prod(keepdim=True)["x"].shape != (1, 1, 1)


# Arguments that make no sense name what is wrong.
@pytest.mark.parametrize(
    ("run", "error", "word"),
    [
        (lambda t: t.sum(3), IndexError, "sum.*3"),
        (lambda t: t.sum((0, 0)), ValueError, "twice"),
        (lambda t: t.narrow(0, 3, 4), IndexError, "narrow.*4 positions"),
        (lambda t: t.tensor_split(0), ValueError, "tensor_split"),
        (lambda t: t.repeat(), ValueError, "repeat"),
        (lambda t: t.flip((0, 0)), ValueError, "twice"),
        (lambda t: t.roll((1, 2), 0), ValueError, "2 shifts"),
        (lambda t: t.gather(0, torch.zeros(1, 1).long()), ValueError, "gather"),
        (lambda t: t.gather(0, torch.tensor([9])), IndexError, ""),
        (lambda t: t.pad([1]), ValueError, "pad"),
        (lambda t: t.refine_names("a", "b"), ValueError, "2 names"),
        (lambda t: t.rename(q="p"), ValueError, "q"),
        (lambda t: t.rename_keys({"q": "p"}), KeyError, "q"),
        (lambda t: t.separates("q"), KeyError, "q"),
        (lambda t: t.set_non_tensor("q", torch.ones(4)), TypeError, "Tensor"),
        (lambda t: t.apply(lambda x, y: x, OURS(batch_size=[4]), call_on_nested=True), KeyError, "a"),
        (lambda t: OURS({"a": torch.ones(2)}, [2], names=["x", "y"]), ValueError, ""),
        (lambda t: OURS({"a": torch.ones(2)}, [2], device="nowhere"), RuntimeError, "nowhere"),
        (lambda t: OURS.from_dict({}, batch_size=[1], auto_batch_size=True), ValueError, "either"),
        (lambda t: t.empty().popitem(), KeyError, "empty"),
        (lambda t: OURS().sum(reduce=True), ValueError, "sum"),
    ],
)
def test_wrong_arguments(run, error, word):
    tree = OURS({"a": torch.ones(4), "b": torch.ones(4, 2)}, [4])
    before = tree.clone()
    with pytest.raises(error, match=word):
        run(tree)
    assert tree.equal(before)


def test_positions_become_stacks_of_tensordict():
    tree = OURS({"x": torch.ones(2)}, [2])
    first, second = OURS({"y": torch.ones(2, 3)}, [2]), OURS({"y": torch.ones(2, 4)}, [2])
    tree["n"] = leafpack.LazyStack(first, second, stack_dim=1)
    tree["words"] = ["a", "b"]
    theirs = tree.to_tensordict()
    assert isinstance(theirs["n"], tensordict.LazyStackedTensorDict) and theirs["n"].batch_size == (2, 2)
    assert theirs["n"][:, 1]["y"].data_ptr() == second["y"].data_ptr()
    assert theirs.get("words").tolist() == ["a", "b"]
    assert OURS.from_tensordict(theirs).equal(tree)
    theirs["long"] = tensordict.LazyStackedTensorDict(
        *(THEIRS({"z": torch.ones(2, 3, n), "e": THEIRS({}, [2, 3, 1])}, [2, 3]) for n in (1, 2)), stack_dim=2
    )
    back = OURS.from_tensordict(theirs)
    assert back["long", 1].batch_size == (2, 3) and back["long", 1, "e"].batch_size == (2, 3, 1)
    assert back.to_tensordict()["long"].stack_dim == 2
    with pytest.raises(ValueError, match="positions"):
        OURS({"l": [torch.ones(1)]}).to_tensordict()


def test_lists_as_one_value(tmp_path):
    value = ["x", [1, [2.5, None]], True]
    tree = OURS({"x": torch.ones(2)}, [2]).set_non_tensor(("n", "v"), value)
    theirs = tree.to_tensordict()
    for other in (tree, pickle.loads(pickle.dumps(tree)), tree.clone(), OURS.from_tensordict(theirs)):
        assert other.get_non_tensor(("n", "v")) == value and other.keys(True, True) == [("n", "v"), "x"]
    tree.memmap(tmp_path / "ours")
    theirs.memmap(tmp_path / "theirs")
    assert THEIRS.load_memmap(tmp_path / "ours")["n", "v"] == value
    assert OURS.load_memmap(tmp_path / "theirs").equal(tree)
    with pytest.raises(TypeError):
        tree.set_non_tensor("w", [torch.ones(1)])
