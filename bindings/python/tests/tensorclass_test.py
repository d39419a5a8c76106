"""leafpack.tensorclass beside tensordict.tensorclass: the same declarations, the same operations."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Optional

import numpy
import pytest
import tensordict
import torch

import leafpack


@leafpack.tensorclass
class Ours:
    x: torch.Tensor
    inner: Optional[Ours] = None
    note: str = "plain"
    count: int = 3


@tensordict.tensorclass
class Theirs:
    x: torch.Tensor
    inner: Optional[Theirs] = None
    note: str = "plain"
    count: int = 3


def make(cls):
    inner = cls(x=torch.arange(4.0), batch_size=[4])
    return cls(x=torch.arange(8.0).reshape(4, 2), inner=inner, note="n", batch_size=[4])


def check(ours, theirs, where="result"):
    if isinstance(theirs, Theirs):
        assert isinstance(ours, Ours), where
        assert ours.batch_size == theirs.batch_size, where
        for name in ("x", "inner", "note", "count"):
            check(getattr(ours, name), getattr(theirs, name), f"{where}.{name}")
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype, where
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=where)
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs), where
        for i, pair in enumerate(zip(ours, theirs)):
            check(*pair, f"{where}[{i}]")
    else:
        assert ours == theirs, where


def _set_item(d, index, value):
    d[index] = value
    return d


def _set_field(d, name, value):
    setattr(d, name, value)
    return d


CASES = {
    "fields": lambda d: [d.x, d.inner.x, d.note, d.count, d.inner.note, d.inner.inner],
    "sizes": lambda d: [d.batch_size, d.shape, d.ndim, d.numel(), len(d), d.device],
    "set field": lambda d: _set_field(d, "x", torch.zeros(4)),
    "set note": lambda d: _set_field(d, "note", "other"),
    "set inner": lambda d: _set_field(d, "inner", None),
    "index": lambda d: d[0],
    "slice": lambda d: d[1:3],
    "mask": lambda d: d[torch.tensor([True, False, True, False])],
    "none": lambda d: d[:, None],
    "set index": lambda d: _set_item(d, 0, d[1]),
    "iter": lambda d: list(d),
    "stack": lambda d: torch.stack([d, d.clone()]).x,
    "stack class": lambda d: type(torch.stack([d, d])) is type(d),
    "stack inner": lambda d: torch.stack([d, d], 1).inner.x,
    "cat": lambda d: torch.cat([d, d], 0),
    "unbind": lambda d: d.unbind(0),
    "split": lambda d: d.split(2),
    "view": lambda d: d.view(2, 2),
    "reshape": lambda d: d.reshape(-1),
    "unsqueeze": lambda d: [d.unsqueeze(0).x, d.unsqueeze(0).inner.x],
    "to": lambda d: d.to(torch.float64),
    "clone": lambda d: d.clone(),
    "apply": lambda d: d.apply(lambda x: x + 1),
    "apply_": lambda d: d.apply_(lambda x: x + 1),
    "replace": lambda d: d.replace(x=torch.zeros(4)),
    "+": lambda d: d + 1,
    "*": lambda d: d * d,
    "abs": lambda d: abs(d - 3),
    "equal": lambda d: [(d.x == d.x).all(), bool((d == d).x.all())],
    "zero_": lambda d: d.zero_(),
    "get": lambda d: d.get("x"),
    "get default": lambda d: d.get("zz", 5),
    "set": lambda d: d.set("x", torch.zeros(4)),
    "update": lambda d: d.update({"x": torch.zeros(4)}),
    "select": lambda d: d.select("x").x,
    "detach": lambda d: d.detach(),
    "sum": lambda d: d.sum().x,
    "to_dict": lambda d: [sorted(d.to_dict()), d.to_dict()["x"], d.to_dict()["note"]],
    "number": lambda d: type(d)(x=1, batch_size=[]).x,
    "array": lambda d: type(d)(x=numpy.ones(3), batch_size=[3]).x,
    "positional": lambda d: type(d)(torch.ones(2), None, "a", batch_size=[2]).note,
    "names": lambda d: type(d)(x=torch.ones(2), batch_size=[2], names=["t"]).names,
    "pickle": lambda d: pickle.loads(pickle.dumps(d)),
    "deepcopy": copy.deepcopy,
    "fields of the class": lambda d: [f.name for f in type(d).fields()],
    "from_dict": lambda d: type(d).from_dict({"x": torch.ones(2, 3)}, batch_size=[2]),
    "lazy": lambda d: type(d).lazy_stack([d, d], 0).x,
    "lazy index": lambda d: type(d).lazy_stack([d, d], 0)[1],
    "torch.unbind": lambda d: torch.unbind(d, 0),
    "torch.zeros_like": lambda d: torch.zeros_like(d).x,
    "requires_grad": lambda d: [d.requires_grad, d.requires_grad_().requires_grad],
    "lock": lambda d: [d.is_locked, d.lock_().is_locked],
}


@pytest.mark.parametrize("name", CASES)
def test_as_tensordict(name):
    ours, theirs = make(Ours), make(Theirs)
    check(CASES[name](ours), CASES[name](theirs))
    check(ours, theirs, "the instance itself")


REFUSED = {
    "missing": (lambda d: type(d)(), TypeError),
    "strange": (lambda d: type(d)(x=torch.ones(1), z=3), (TypeError, AttributeError)),
    "sizes": (lambda d: _set_field(d, "x", torch.ones(3)), (ValueError, RuntimeError)),
    "no field": (lambda d: _set_field(d, "q", 3), AttributeError),
    "key in brackets": (lambda d: d["x"], ValueError),
    "extra key": (lambda d: type(d).from_tensordict(_extra(d)), ValueError),
    "attribute": (lambda d: d.nothing_of_this_name, AttributeError),
    "bool": (bool, (RuntimeError, ValueError)),
}


def _extra(d):
    kind = leafpack.TensorDict if isinstance(d, Ours) else tensordict.TensorDict
    return kind({"x": torch.ones(2), "q": torch.ones(2)}, [2])


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(name):
    run, errors = REFUSED[name]
    for d in (make(Ours), make(Theirs)):
        with pytest.raises(errors):
            run(d)


def test_shares_storage():
    d = make(Ours)
    assert d[0].x.untyped_storage().data_ptr() == d.x.untyped_storage().data_ptr()
    assert d.to_tree()["inner", "x"] is d.inner.x
    theirs = tensordict.TensorDict({"x": torch.ones(3)}, [3])
    assert Ours.from_tensordict(theirs).x is theirs["x"]
    assert Ours.from_tensordict(make(Ours).to_tensordict()).inner.x.shape == (4,)


def test_options():
    @leafpack.tensorclass(autocast=True)
    class Cast:
        x: torch.Tensor
        name: str = ""

    assert Cast(x=[1.0, 2.0], name=5, batch_size=[2]).name == "5"

    @leafpack.tensorclass(frozen=True)
    class Frozen:
        x: torch.Tensor

    frozen = Frozen(x=torch.ones(2), batch_size=[2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.x = torch.zeros(2)
    assert (frozen + 1).x.tolist() == [2, 2]

    @leafpack.tensorclass(nocast=True)
    class Kept:
        x: torch.Tensor

    assert Kept(x=3).x == 3

    with pytest.raises(AttributeError, match="stack"):

        @leafpack.tensorclass
        class Bad:
            stack: torch.Tensor

    @leafpack.tensorclass(shadow=True)
    class Shadow:
        sum: torch.Tensor

    assert Shadow(sum=torch.ones(2), batch_size=[2]).sum.tolist() == [1, 1]


def test_tensors_only():
    @leafpack.tensorclass(tensor_only=True)
    class Mine:
        x: torch.Tensor
        y: Optional[torch.Tensor] = None

    @tensordict.tensorclass(tensor_only=True)
    class Its:
        x: torch.Tensor
        y: Optional[torch.Tensor] = None

    for cls in (Mine, Its):
        one = cls(x=[1, 2], batch_size=[2])
        assert one.x.tolist() == [1, 2] and one.y is None
        one.y = torch.ones(2, 3)
        assert one[0].y.shape == (3,) and type(one[0]) is cls
        assert (one + 1).x.tolist() == [2, 3]
    assert Mine(x=3).x.item() == 3
    node = leafpack.TensorDict({"a": torch.ones(2)}, [2])
    assert Mine(x=torch.ones(2), y=node, batch_size=[2]).y.is_same(node)
    with pytest.raises(TypeError, match="y: a str is no tensor"):
        Mine(x=torch.ones(2), y="text")
    for decorator in (leafpack.tensorclass, tensordict.tensorclass):
        with pytest.raises(TypeError, match="tensor_only"):

            @decorator(tensor_only=True)
            class Bad:
                x: torch.Tensor
                count: int = 3

    with pytest.raises(TypeError, match="nocast"):
        leafpack.tensorclass(nocast=True, tensor_only=True)(type("Two", (), {}))


def test_base_class():
    def declare(base):
        class Plain(base):
            x: torch.Tensor
            note: str = "n"

        class Flags(base["autocast"]):
            x: torch.Tensor

        class Below(Flags):
            z: Optional[torch.Tensor] = None

        class Options(base, frozen=True):
            x: torch.Tensor

        return Plain, Flags, Below, Options

    for base in (leafpack.TensorClass, tensordict.TensorClass):
        plain, flags, below, options = declare(base)
        one = plain(x=torch.ones(2, 3), batch_size=[2])
        assert isinstance(one, base) and one.note == "n" and isinstance(one[0], plain)
        assert torch.stack([one, one]).x.shape == (2, 2, 3)
        assert flags(x=[1.0, 2.0], batch_size=[2]).x.tolist() == [1, 2]
        both = below(x=torch.tensor([1.0, 2.0]), z=torch.tensor([3.0, 4.0]), batch_size=[2])
        assert both.z.tolist() == [3, 4] and isinstance(both, flags)
        assert isinstance((both * 2), below) and (both * 2).x.tolist() == [2, 4]
        with pytest.raises((RuntimeError, AttributeError)):
            options(x=torch.ones(2)).x = torch.zeros(2)
        with pytest.raises(TypeError):
            base["no such option"]
    again = declare(leafpack.TensorClass)[2]
    assert again(x=[1.0], z=[3.0]).z.tolist() == [3]  # the options hold below, Optional or not

    class Same(again):  # declares a field anew, without a default
        x: torch.Tensor

    assert Same(x=[5.0]).x.tolist() == [5]
    with pytest.raises(TypeError, match="'x'"):
        Same()

    @leafpack.tensorclass(kw_only=True)
    class Named:
        x: torch.Tensor

    with pytest.raises(TypeError):
        Named(torch.ones(1))
    assert Named(x=torch.ones(1)).x.item() == 1


def test_defaults_and_post_init():
    @leafpack.tensorclass
    class WithList:
        x: torch.Tensor
        tags: list = dataclasses.field(default_factory=list)
        twice: torch.Tensor = None

        def __post_init__(self):
            self.twice = self.x * 2

        def total(self):
            return self.x.sum()

    d = WithList(x=torch.ones(2), batch_size=[2])
    assert d.twice.tolist() == [2, 2] and d.total() == 2 and d.tags == []
    d.tags = ["a", "b"]
    assert d.tags == ["a", "b"]
    with pytest.raises(TypeError, match="tags"):
        d.tags = object()
    assert "twice=float32 [2]" in repr(d)


def test_what_it_is():
    assert leafpack.is_tensorclass(Ours) and leafpack.is_tensorclass(make(Ours))
    assert not leafpack.is_tensorclass(leafpack.TensorDict)
    with pytest.raises(TypeError, match="already"):
        leafpack.tensorclass(Ours)
    with pytest.raises(TypeError):
        hash(make(Ours))


def test_the_tree_that_collectives_read():
    paths = [path for path, _ in leafpack._C.read_tree(make(Ours))]
    assert paths == [("count",), ("inner", "count"), ("inner", "note"), ("inner", "x"), ("note",), ("x",)]
