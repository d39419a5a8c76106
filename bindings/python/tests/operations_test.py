"""Every operation of leafpack.TensorDict beside tensordict's own, on the same trees and arguments."""

import copy
import io
import operator
import pickle

import numpy as np
import pytest
import tensordict
import torch

import leafpack
from beside import ALL, BATCHED, OURS, THEIRS, assert_same, both, storages

def _mask(t):
    return torch.arange(t.batch_size[0]) % 2 == 0


def _sorted(keys):
    return sorted((k if isinstance(k, tuple) else (k,)) for k in keys)


def _other(t):
    return t.apply(lambda x: x * 2 - 3)


def _set_index(index, value):
    def run(t):
        t[index] = value(t) if callable(value) else value

    return run


# Name, function of a tree of either kind, trees. What it returns and what it makes of the tree are compared.
CASES = [
    ("set", lambda t: t.set("new", torch.ones(*t.batch_size, 2)), ALL),
    ("set nested", lambda t: t.set(("p", "q"), torch.ones(*t.batch_size, 2)), ALL),
    ("setitem", lambda t: t.__setitem__(("in", "v"), torch.ones(t.batch_size)), ALL),
    ("set_", lambda t: t.set_("x", torch.zeros_like(t["x"])), ("nested", "single", "no batch")),
    ("set_ nested", lambda t: t.set_(("in", "y"), torch.zeros_like(t["in", "y"])), ("nested",)),
    ("set inplace", lambda t: t.set("a", torch.zeros(4), inplace=True), ("flat",)),
    ("set_at_", lambda t: t.set_at_("b", torch.zeros(3), 1), ("flat",)),
    ("get", lambda t: t.get(("in", "y")), ("nested", "single", "no batch")),
    ("get default", lambda t: t.get("q", 5), ALL),
    ("get none", lambda t: t.get("q"), ALL),
    ("setdefault", lambda t: t.setdefault("q", torch.ones(t.batch_size)), ALL),
    ("setdefault there", lambda t: t.setdefault("a", torch.ones(t.batch_size)), ("flat",)),
    ("pop", lambda t: t.pop("a"), ("flat",)),
    ("pop nested", lambda t: t.pop(("in", "y")), ("nested", "no batch")),
    ("pop default", lambda t: t.pop("q", 3), ALL),
    ("del_", lambda t: t.del_("a"), ("flat",)),
    ("delitem", lambda t: operator.delitem(t, "x"), ("nested",)),
    ("contains", lambda t: ["x" in t, ("in", "y") in t, "q" in t, ("in", "q") in t], ALL),
    ("rename_key_", lambda t: t.rename_key_("a", "c"), ("flat",)),
    ("rename_key_ nested", lambda t: t.rename_key_(("in", "y"), ("in", "w")), ("nested",)),
    ("rename_key_ over", lambda t: t.rename_key_("a", "b"), ("flat",)),
    ("keys", lambda t: _sorted(t.keys()), ALL),
    ("keys nested", lambda t: _sorted(t.keys(True)), ALL),
    ("keys leaves", lambda t: _sorted(t.keys(True, True)), ALL),
    ("keys leaves here", lambda t: _sorted(t.keys(False, True)), ALL),
    ("keys sort", lambda t: [str(k) for k in t.keys(sort=True)], ALL),
    ("values sort", lambda t: list(t.values(True, True, sort=True)), ("flat",)),
    ("items sort", lambda t: list(t.items(sort=True)), ("flat",)),
    ("update", lambda t: t.update({"x": torch.ones(t.batch_size), "n": {"m": torch.ones(t.batch_size)}}), ALL),
    ("update tree", lambda t: t.update(_other(t)), ALL),
    ("update part", lambda t: t.update(_other(t), keys_to_update=["x"]), ("nested",)),
    ("update inplace", lambda t: t.update(_other(t), inplace=True), ALL),
    ("update_", lambda t: t.update_(_other(t)), ALL),
    ("update_ part", lambda t: t.update_({"in": {"y": torch.zeros(4, 3)}}), ("nested",)),
    ("select", lambda t: t.select("x"), ("nested", "single", "no batch")),
    ("select nested", lambda t: t.select(("in", "y"), "x"), ("nested", "no batch")),
    ("select not strict", lambda t: t.select("q", "a", strict=False), ("flat",)),
    ("select inplace", lambda t: t.select("a", inplace=True), ("flat",)),
    ("exclude", lambda t: t.exclude("x"), ALL),
    ("exclude nested", lambda t: t.exclude(("in", "y"), "nothing"), ALL),
    ("flatten_keys", lambda t: t.flatten_keys(), ALL),
    ("flatten_keys _", lambda t: t.flatten_keys("_"), ALL),
    ("unflatten_keys", lambda t: t.flatten_keys(".").unflatten_keys("."), ALL),
    ("empty", lambda t: t.empty(), ALL),
    ("apply", lambda t: t.apply(lambda x: x + 1), ALL),
    ("apply two", lambda t: t.apply(lambda x, y: x - y, _other(t)), ALL),
    ("apply batch_size", lambda t: t.apply(lambda x: x.sum(), batch_size=[]), ALL),
    ("apply drop", lambda t: t.apply(lambda x: x if x.dim() != 1 else None), ("flat", "no batch")),
    ("apply_", lambda t: t.apply_(lambda x: x + 1), ALL),
    ("apply inplace", lambda t: t.apply(lambda x: x * 2, inplace=True), ALL),
    ("named_apply", lambda t: t.named_apply(lambda n, x: x + len(n)), ALL),
    ("named_apply nested", lambda t: t.named_apply(lambda n, x: x + len(n), nested_keys=True), ALL),
    ("index int", lambda t: t[0], BATCHED),
    ("index -1", lambda t: t[-1], BATCHED),
    ("index slice", lambda t: t[1:3], ("flat", "nested")),
    ("index step", lambda t: t[::2], BATCHED),
    ("index ellipsis", lambda t: t[..., 0], BATCHED),
    ("index none", lambda t: t[None], ALL),
    ("index mixed", lambda t: t[1:, None, 2], ("nested",)),
    ("index mask", lambda t: t[_mask(t)], BATCHED),
    ("index tensor", lambda t: t[torch.tensor([0, 0])], BATCHED),
    ("index list", lambda t: t[[0, 0]], BATCHED),
    ("index two tensors", lambda t: t[torch.tensor([0, 1]), torch.tensor([2, 0])], ("nested",)),
    ("index range", lambda t: t[range(0, 2)], ("flat",)),
    ("index uint8", lambda t: t[_mask(t).byte()], BATCHED),
    ("index numpy", lambda t: t[np.array([0, 0])], BATCHED),
    ("index numpy int32", lambda t: t[..., np.array([0, -1], dtype=np.int32)], BATCHED),
    ("index numpy mask", lambda t: t[_mask(t).numpy()], BATCHED),
    ("index numpy nothing", lambda t: t[np.array([], dtype=np.int64)], BATCHED),
    ("index numpy two dims", lambda t: t[np.array([[0, 0], [0, 0]])], ("flat",)),
    ("index numpy numbers", lambda t: [t[np.int64(0)], t[np.uint8(0)], t[np.array(0)]], BATCHED),
    ("index huge slice", lambda t: [t[0 : 10**20], t[-(10**20) : 10**20]], BATCHED),
    ("set index numpy", lambda t: t.__setitem__(np.array([0]), _other(t)[:1]), BATCHED),
    ("set index numpy mask", lambda t: t.__setitem__(_mask(t).numpy(), 7), BATCHED),
    ("set_at_ numpy", lambda t: t.set_at_("a", torch.zeros(2), np.array([3, 1])), ("flat",)),
    ("set index", _set_index(0, lambda t: _other(t)[0]), BATCHED),
    ("set index slice", _set_index(slice(1, 3), lambda t: _other(t)[1:3]), ("flat", "nested")),
    ("set index mask", lambda t: t.__setitem__(_mask(t), _other(t)[_mask(t)]), BATCHED),
    ("set index number", _set_index(0, 7), BATCHED),
    ("split", lambda t: t.split(2), ("flat", "nested")),
    ("split uneven", lambda t: t.split(3), ("flat", "nested")),
    ("split sizes", lambda t: t.split([1, 3]), ("flat", "nested")),
    ("split dim", lambda t: t.split([2, 1], -1), ("nested",)),
    ("chunk", lambda t: t.chunk(2), ("flat", "nested")),
    ("unbind", lambda t: t.unbind(0), BATCHED),
    ("unbind -1", lambda t: t.unbind(-1), BATCHED),
    ("iter", lambda t: list(t), BATCHED),
    ("len", len, ALL),
    ("stack", lambda t: torch.stack([t, _other(t)]), ALL),
    ("stack 1", lambda t: torch.stack([t, _other(t)], 1), BATCHED),
    ("stack -1", lambda t: torch.stack([t, _other(t)], dim=-1), ALL),
    ("cat", lambda t: torch.cat([t, _other(t)]), BATCHED),
    ("cat -1", lambda t: torch.cat([t, _other(t)], -1), BATCHED),
    ("view", lambda t: t.view(-1), BATCHED),
    ("view sizes", lambda t: t.view(2, 6), ("nested",)),
    ("view tuple", lambda t: t.view((2, 2)), ("flat",)),
    ("reshape", lambda t: t.reshape(-1), BATCHED),
    ("reshape copies", lambda t: t.permute(1, 0).reshape(12), ("nested",)),
    ("permute", lambda t: t.permute(1, 0), ("nested",)),
    ("permute dims", lambda t: t.permute(dims=(2, 0, 1)), ("single",)),
    ("transpose", lambda t: t.transpose(0, 1), ("nested", "single")),
    ("squeeze", lambda t: t.squeeze(0), BATCHED),
    ("squeeze all", lambda t: t.squeeze(), BATCHED),
    ("unsqueeze", lambda t: t.unsqueeze(0), ALL),
    ("unsqueeze -1", lambda t: t.unsqueeze(-1), ALL),
    ("expand", lambda t: t.expand(2, *t.batch_size), ALL),
    ("flatten", lambda t: t.flatten(0, 1), ("nested", "single")),
    ("unflatten", lambda t: t.unflatten(0, (2, 2)), ("flat", "nested")),
    ("to dtype", lambda t: t.to(torch.float64), ALL),
    ("to device", lambda t: t.to("cpu"), ALL),
    ("double", lambda t: t.double(), ALL),
    ("clone", lambda t: t.clone(), ALL),
    ("clone shallow", lambda t: t.clone(recurse=False), ALL),
    ("copy", lambda t: t.copy(), ALL),
    ("contiguous", lambda t: t.contiguous(), ALL),
    ("contiguous copies", lambda t: t.permute(1, 0).contiguous(), ("nested",)),
    ("detach", lambda t: t.detach(), ALL),
    ("zero_", lambda t: t.zero_(), ALL),
    ("requires_grad_", lambda t: [t.requires_grad_().requires_grad, t.requires_grad_(False).requires_grad], ALL),
    ("lock", lambda t: [t.is_locked, t.lock_().is_locked, t.unlock_().is_locked], ALL),
    ("locked set_", lambda t: t.lock_().set_("a", torch.zeros(4)), ("flat",)),
    ("==", lambda t: t == _other(t), ALL),
    ("== number", lambda t: t == 1, ALL),
    ("!=", lambda t: t != _other(t), ALL),
    ("<", lambda t: t < _other(t), ALL),
    (">= number", lambda t: t >= 2, ALL),
    ("all", lambda t: [(t == t).all(), (t == _other(t)).all()], ALL),
    ("any", lambda t: [(t == t).any(), (t > 1e9).any()], ALL),
    ("numel", lambda t: t.numel(), ALL),
    ("bytes", lambda t: t.bytes(), ALL),
    ("is_empty", lambda t: [t.is_empty(), t.empty().is_empty()], ALL),
    ("batch_dims", lambda t: [t.batch_dims, t.ndim, t.dim(), t.shape, t.size(), t.device], ALL),
    ("+", lambda t: t + _other(t), ALL),
    ("+ number", lambda t: t + 1.5, ALL),
    ("number +", lambda t: 2 + t, ALL),
    ("-", lambda t: t - _other(t), ALL),
    ("number -", lambda t: 1 - t, ALL),
    ("*", lambda t: t * _other(t), ALL),
    ("* number", lambda t: t * 3, ALL),
    ("* tensor", lambda t: t * torch.tensor(2.0), ALL),
    ("/", lambda t: t / (_other(t) + 100), ALL),
    ("**", lambda t: t**2, ALL),
    ("+=", lambda t: t.__iadd__(1), ALL),
    ("neg", lambda t: -t, ALL),
    ("abs", lambda t: abs(-t), ALL),
    ("add alpha", lambda t: t.add(_other(t), alpha=0.5), ALL),
    ("add_", lambda t: t.add_(_other(t)), ALL),
    ("add_ alpha", lambda t: t.add_(_other(t), alpha=2.0), ALL),
    ("sub_", lambda t: t.sub_(_other(t)), ALL),
    ("mul_", lambda t: t.mul_(2), ALL),
    ("div_", lambda t: t.div_(4.0), ALL),
    ("pow_", lambda t: t.pow_(2), ALL),
    ("maximum", lambda t: t.maximum(_other(t)), ALL),
    ("minimum", lambda t: t.minimum(_other(t)), ALL),
    ("clamp", lambda t: t.clamp(0.7, 2), ALL),
    ("lerp", lambda t: t.lerp(_other(t), 0.25), ALL),
    ("lerp_", lambda t: t.lerp_(_other(t), 0.25), ALL),
    ("addcmul_", lambda t: t.addcmul_(_other(t), _other(t), value=0.5), ALL),
    ("addcdiv_", lambda t: t.addcdiv_(_other(t), _other(t) + 100, value=0.5), ALL),
    ("norm", lambda t: t.norm(), ALL),
    ("torch.split", lambda t: torch.split(t, 2), ("flat", "nested")),
    ("torch.unbind", lambda t: torch.unbind(t, 0), BATCHED),
    ("torch.squeeze", lambda t: torch.squeeze(t, 0), BATCHED),
    ("torch.unsqueeze", lambda t: torch.unsqueeze(t, 0), ALL),
    ("torch.permute", lambda t: torch.permute(t, (1, 0)), ("nested",)),
    ("torch.reshape", lambda t: torch.reshape(t, (-1,)), BATCHED),
    ("torch.flatten", lambda t: torch.flatten(t, 0, 1), ("nested",)),
    ("torch.clone", torch.clone, ALL),
    ("torch.zeros_like", torch.zeros_like, ALL),
    ("torch.ones_like", torch.ones_like, ALL),
    ("torch.full_like", lambda t: torch.full_like(t, 3.0), ALL),
    ("state_dict", lambda t: dict(t.state_dict()), ALL),
    ("state_dict prefix", lambda t: dict(t.state_dict(prefix="p.")), ALL),
    ("load_state_dict", lambda t: t.load_state_dict(_other(t).state_dict()), ALL),
    ("consolidate", lambda t: t.consolidate(), ALL),
    ("to_dict", lambda t: t.to_dict(), ALL),
    ("pickle", lambda t: pickle.loads(pickle.dumps(t)), ALL),
    ("deepcopy", copy.deepcopy, ALL),
]  # fmt: skip
CASES += [
    (name, lambda t, name=name: getattr(t, name)(), ("flat", "nested"))
    for name in (
        "abs neg sign reciprocal sqrt exp expm1 log log10 log1p log2 sin cos tan atan sinh cosh tanh erf erfc lgamma"
        " ceil floor round trunc frac sigmoid"
    ).split()
]
CASES += [(name + "_", lambda t, name=name: getattr(t, name + "_")(), ("flat",)) for name in ("exp", "sqrt", "neg")]

# Without views of the input in either: whether a clone of a clone shares is not asked.
_NO_VIEWS = {"deepcopy", "pickle"}


@pytest.mark.parametrize(
    ("name", "run", "tree"),
    [pytest.param(n, f, tree, id=f"{n}-{tree}") for n, f, trees in CASES for tree in trees],
)
def test_as_tensordict(name, run, tree):
    ours, theirs = both(tree)
    views = None if name in _NO_VIEWS else (storages(ours), storages(theirs))
    got, wanted = run(ours), run(theirs)
    assert_same(got, wanted, views=views)
    assert_same(ours, theirs, "the tree itself")


# Operands that are no trees, and how they are used.
_OPERANDS = {
    "row": torch.tensor([1.0, 2.0]), "one": torch.tensor([3.0]), "scalar": torch.tensor(2.0),
    "column": torch.tensor([[1.0], [2.0]]), "larger batch": torch.arange(1.0, 7.0).view(3, 2),
    "unfit": torch.ones(3), "whole": torch.tensor([1, 2]), "numpy": np.float32(2), "numpy int": np.int64(2),
}  # fmt: skip
_USES = {}
for _name in (
    "add sub mul div pow maximum minimum clamp_min clamp_max rsub mod add_ sub_ mul_ div_ pow_ maximum_ minimum_"
    " clamp_min_ clamp_max_"
).split():
    _USES[_name] = lambda t, x, name=_name: getattr(t, name)(x)
for _name in "add sub mul truediv pow mod eq ne lt le gt ge iadd isub imul itruediv ipow".split():
    _USES["operator " + _name] = lambda t, x, name=_name: getattr(operator, name)(t, x)
for _name in "add sub mul eq lt".split():
    _USES["reversed " + _name] = lambda t, x, name=_name: getattr(operator, name)(x, t)
for _name in "add sub mul div pow maximum minimum rsub".split():
    _USES["torch " + _name] = lambda t, x, name=_name: getattr(torch, name)(t, x)
_USES |= {
    "add alpha": lambda t, x: t.add(x, alpha=2),
    "clamp": lambda t, x: t.clamp(x, x + 1),
    "clamp one": lambda t, x: t.clamp(max=x),
    "clamp by keyword": lambda t, x: t.clamp(min=x, max=x + 1),
    "and": lambda t, x: (t > 2) & (x > 1),
    "or": lambda t, x: (t > 2) | (x > 1),
    "xor": lambda t, x: (t > 2) ^ (x > 1),
    "logical_and": lambda t, x: t.logical_and(x),
}


def _small(kind, batch_size):
    children = {"a": torch.arange(1.0, 7.0).view(2, 3), "d": torch.arange(1.0, 5.0).view(2, 2)}
    return kind({**children, "n": kind({"b": torch.arange(1.0, 3.0)}, batch_size)}, batch_size)


@pytest.mark.parametrize("use", _USES)
@pytest.mark.parametrize("operand", _OPERANDS)
@pytest.mark.parametrize("batch_size", [[2], []])
def test_operands_are_aligned_as_in_tensordict(use, operand, batch_size):
    value, numbers = _OPERANDS[operand], operand.startswith("numpy")
    if numbers and use.startswith(("reversed", "and", "or", "xor", "logical", "torch")):
        pytest.skip("tensordict takes none of numpy's numbers there")
    ours, theirs = _small(OURS, batch_size), _small(THEIRS, batch_size)
    before = ours.clone()
    try:
        wanted = _USES[use](theirs, value)
    except Exception:  # noqa: BLE001 - whichever class they have for it
        wanted = None
    in_place = use.endswith("_") or use.startswith("operator i")
    if wanted is None or (in_place and wanted.batch_size != before.batch_size):
        with pytest.raises((ValueError, RuntimeError, TypeError)):
            _USES[use](ours, value)
        assert ours.equal(before)
        return
    assert_same(_USES[use](ours, value), wanted)
    assert_same(ours, theirs, "the tree itself")


def test_a_tensor_divided_by_a_tree():  # where tensordict rounds twice
    ours, value = _small(OURS, [2]), torch.tensor([1.0, 2.0])
    torch.testing.assert_close((value / ours)["a"], value[:, None] / ours["a"], rtol=0, atol=0)


def test_numbers_of_numpy_in_front_of_a_tree():
    tree = OURS({"a": torch.tensor([1.0, 2.0])})
    assert (np.float32(2) * tree)["a"].tolist() == [2, 4]
    assert (np.float64(3) - tree)["a"].tolist() == [2, 1]
    tree[...] = np.float32(5)
    assert tree["a"].tolist() == [5, 5]
    assert tree.add(tree, alpha=np.float32(2))["a"].tolist() == [15, 15]


# In place; each must refuse the second leaf before it writes the first, and name it.
_IN_PLACE = {
    "add_": (lambda t: t.add_(1.5), ("int", "expanded", "grad")),
    "mul_ tensor": (lambda t: t.mul_(torch.tensor(1.5)), ("int", "expanded", "grad")),
    "sqrt_": (lambda t: t.sqrt_(), ("int", "expanded", "grad")),
    "tree add_": (lambda t: t.add_(t.apply(lambda x: x.detach() + 0.5)), ("int", "expanded", "grad")),
    "lerp_": (lambda t: t.lerp_(t.apply(lambda x: x.detach().float() + 0.5), 0.5), ("int", "expanded", "grad")),
    "clamp_min_": (lambda t: t.clamp_min_(4.5), ("int", "expanded", "grad")),
    "zero_": (lambda t: t.zero_(), ("expanded", "grad")),
    "set index": (lambda t: t.__setitem__(slice(None), t.detach().clone()), ("expanded", "grad")),
    "set number": (lambda t: t.__setitem__(slice(None), 2), ("expanded", "grad")),
    "update_": (lambda t: t.update_(t.detach().clone()), ("expanded", "grad")),
    "set_": (lambda t: t.set_("b", torch.ones(3)), ("expanded", "grad")),
    "apply_": (lambda t: t.apply_(lambda x: x * 2), ("expanded",)),
    "load_state_dict": (lambda t: t.load_state_dict(t.clone().state_dict()), ("expanded",)),
}
_UNWRITABLE = {
    "int": lambda: torch.tensor([1, 2, 3]),
    "expanded": lambda: torch.zeros(1).expand(3),
    "grad": lambda: torch.ones(3, requires_grad=True),
}


@pytest.mark.parametrize(
    ("run", "leaf"), [pytest.param(f, k, id=f"{n} {k}") for n, (f, kinds) in _IN_PLACE.items() for k in kinds]
)
def test_nothing_is_written_unless_all_leaves_take_it(run, leaf):
    tree = OURS({"a": torch.tensor([1.0, 2.0, 3.0]), "b": _UNWRITABLE[leaf]()}, [3])
    before = tree.detach().clone()
    with pytest.raises((ValueError, RuntimeError), match=r"\bb\b: "):
        run(tree)
    assert tree.detach().equal(before)


def test_consolidated_trees_of_several_dtypes_are_saved():
    base = torch.arange(6.0)
    tree = OURS(
        {"a": base, "same": base, "n": {"i": torch.arange(3), "h": torch.ones(2).half(), "e": torch.zeros(0)}, "s": "x"}
    ).consolidate()
    tree["n"].lock_()
    assert tree["a"].data_ptr() == tree["same"].data_ptr()
    whole = io.BytesIO()
    torch.save([tree, tree["n"]], whole)
    whole.seek(0)
    loaded, _ = torch.load(whole, weights_only=False)
    assert loaded.equal(tree) and loaded["n"].is_locked and not loaded.is_locked
    assert loaded["a"].data_ptr() == loaded["same"].data_ptr()
    assert tree.is_consolidated() and copy.deepcopy(tree).is_consolidated()
    assert pickle.loads(pickle.dumps(tree)).equal(tree)
    stack = leafpack.lazy_stack([OURS({"x": torch.ones(n), "y": torch.arange(n)}) for n in (1, 2)]).consolidate()
    file = io.BytesIO()
    torch.save(stack, file)
    file.seek(0)
    assert torch.load(file, weights_only=False).equal(stack)
    with pytest.raises(RuntimeError, match="different types"):  # docs/tensordict.md says so
        torch.save(tree.state_dict(), io.BytesIO())


def test_memory_formats():
    tree = OURS({"x": torch.ones(2, 3, 4, 5), "n": {"y": torch.ones(1, 2, 3, 4)}})
    moved = tree.to(torch.float64, memory_format=torch.channels_last)
    assert moved["x"].is_contiguous(memory_format=torch.channels_last) and moved["n", "y"].dtype is torch.float64
    assert not moved["x"].is_contiguous() and moved["x"].equal(tree["x"].double())
    # Of the tensors that have as many dimensions as it takes.
    tree = OURS({str(n): torch.randn(*range(2, 2 + n)) for n in range(1, 6)})
    for format, n in ((torch.channels_last, "4"), (torch.channels_last_3d, "5")):
        moved = tree.to(memory_format=format)
        assert moved.equal(tree) and moved[n].is_contiguous(memory_format=format)
        assert [k for k in tree.keys() if moved[k].is_contiguous()] == [k for k in "12345" if k != n]


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda t: t.set(("q", "n"), {"r": object()}), "q.n.r: "),
        (lambda t: t.set("q", object()), "q: "),
        (lambda t: t.set("q", {"l": [torch.ones(1), object()]}), "q.l[1]: "),
        (lambda t: OURS({"q": {"n": object()}}), "q.n: "),
        (lambda t: t.set_("a", 3), "a: 3 of type int is no tensor"),
        (lambda t: t.load_state_dict(None), "NoneType is no state dict"),
    ],
)
def test_errors_give_the_whole_path(run, words):
    with pytest.raises((TypeError, ValueError)) as caught:
        run(both("flat")[0])
    assert words in str(caught.value)


# Both refuse. Name, function, tree, our exception, a word of its text.
ERRORS = [
    ("missing key", lambda t: t["q"], "flat", KeyError, "q"),
    ("missing nested", lambda t: t["in", "q"], "nested", KeyError, "q"),
    ("get through a leaf", lambda t: t.get(("x", "q")), "nested", KeyError, "q"),
    ("batch size", lambda t: t.set("q", torch.ones(3)), "flat", ValueError, "q"),
    ("set_ missing", lambda t: t.set_("q", torch.ones(4)), "flat", KeyError, "q"),
    ("set_ sizes", lambda t: t.set_("b", torch.ones(4, 7)), "flat", ValueError, "b"),
    ("pop missing", lambda t: t.pop("q"), "flat", KeyError, "q"),
    ("delete missing", lambda t: t.del_("q"), "flat", KeyError, "q"),
    ("rename missing", lambda t: t.rename_key_("q", "r"), "flat", KeyError, "q"),
    ("rename safe", lambda t: t.rename_key_("a", "b", safe=True), "flat", ValueError, "b"),
    ("select missing", lambda t: t.select("q"), "flat", KeyError, "q"),
    ("update_ missing", lambda t: t.update_({"q": torch.ones(4)}), "flat", KeyError, "q"),
    ("index range", lambda t: t[4], "flat", IndexError, "4"),
    ("index too many", lambda t: t[0, 0], "flat", IndexError, ""),
    ("index no batch", lambda t: t[0], "no batch", IndexError, ""),
    ("index mask", lambda t: t[torch.ones(3, dtype=torch.bool)], "flat", IndexError, "3"),
    ("index huge", lambda t: t[10**20], "flat", IndexError, "64 bits"),
    ("index numpy flag", lambda t: t[np.bool_(True)], "flat", IndexError, "without dimensions"),
    ("rename_keys over", lambda t: t.rename_keys({"a": "b"}), "flat", ValueError, "'a' cannot become 'b'"),
    ("rename_keys to one", lambda t: t.rename_keys({"a": "z", "b": "z"}), "flat", ValueError, "'a' and 'b' both"),
    ("rename_keys below a leaf", lambda t: t.rename_keys({"a": ("b", "c")}), "flat", ValueError, "'b'"),
    ("rename_keys one in the other", lambda t: t.rename_keys({"in": "p", ("in", "y"): "q"}), "nested", ValueError, "'in'"),
    ("rename_keys into new", lambda t: t.rename_keys({"a": ("p", "q"), "b": "p"}), "flat", ValueError, "'p'"),
    ("iter no batch", iter, "no batch", TypeError, "items"),
    ("bool", bool, "flat", RuntimeError, ""),
    ("hash", hash, "flat", TypeError, ""),
    ("view", lambda t: t.view(5), "flat", ValueError, "5"),
    ("permute", lambda t: t.permute(0, 0), "nested", ValueError, ""),
    ("split sizes", lambda t: t.split([1, 1]), "flat", ValueError, ""),
    ("unbind", lambda t: t.unbind(3), "flat", ValueError, "3"),
    ("stack keys", lambda t: torch.stack([t, t.select("a")]), "flat", ValueError, "b"),
    ("stack nothing", lambda t: type(t).stack([]), "flat", ValueError, ""),
    ("cat no batch", lambda t: torch.cat([t, t]), "no batch", ValueError, ""),
    ("add keys", lambda t: t + t.select("a"), "flat", ValueError, "b"),
    ("add text", lambda t: t + "x", "flat", TypeError, ""),
    ("locked set", lambda t: t.lock_().set("q", torch.ones(4)), "flat", RuntimeError, "q"),
    ("locked pop", lambda t: t.lock_().pop("a"), "flat", RuntimeError, "a"),
    ("locked below", lambda t: t.lock_()["in"].unlock_(), "nested", RuntimeError, ""),
    ("load missing", lambda t: t.load_state_dict({"a": torch.ones(4)}), "flat", KeyError, "b"),
    ("function raises", lambda t: t.apply(lambda x: 1 // 0), "flat", ZeroDivisionError, ""),
    ("torch function", lambda t: torch.fft.fft(t), "flat", TypeError, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("run", "tree", "error", "word"), [pytest.param(*e[1:], id=e[0]) for e in ERRORS]
)
def test_both_refuse(run, tree, error, word):
    ours, theirs = both(tree)
    before = ours.clone()
    with pytest.raises(error) as caught:
        run(ours)
    assert word in str(caught.value)
    assert ours.equal(before)
    with pytest.raises(Exception):  # noqa: B017 - whichever class they have for it
        run(theirs)


# On purpose not as tensordict. Name, tree, function, what ours gives (a value or an exception), why.
DIFFERENCES = [
    ("canonical order", "flat", lambda t: list(t.keys()), ["a", "b"], "every rank sees one order"),
    ("cast", "flat", lambda t: t.set_("a", torch.ones(4, dtype=torch.int32)), ValueError, "a cast must be asked for"),
    ("cast in update_", "flat", lambda t: t.update_({"a": torch.ones(4).double()}), ValueError, "a cast must be asked for"),
    ("flag as index", "flat", lambda t: t[True], TypeError, "None makes a dimension"),
    ("mask without dimensions", "flat", lambda t: t[torch.tensor(True)], IndexError, "as True"),
    ("uint8 as index that is written", "flat", lambda t: (t.__setitem__(_mask(t).byte(), 7), t["a"].tolist())[1][0], 7.0, "as reads"),
    ("negative strides as index", "flat", lambda t: t[np.array([2, 1])[::-1]]["a"].shape, (2,), "nothing speaks against it"),
    ("tensor at an index", "flat", lambda t: t.__setitem__(0, torch.ones(3)), ValueError, "it says no leaf"),
    ("all dropped", "flat", lambda t: type(t.apply(lambda x: None)).__name__, "TensorDict", "a tree comes back as a tree"),
    ("below itself", "nested", lambda t: t.rename_key_("in", ("in", "w")), ValueError, "a node cannot hold itself"),
    ("power of a number", "flat", lambda t: (2.0**t)["a"].tolist()[1], 2.0, "nothing speaks against it"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tree", "run", "wanted"), [pytest.param(*d[1:4], id=d[0]) for d in DIFFERENCES]
)
def test_differs_on_purpose(tree, run, wanted):
    ours, theirs = both(tree)
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            run(ours)
    else:
        assert run(ours) == wanted
    try:
        assert run(theirs) != wanted, "tensordict does the same now: move it to CASES"
    except Exception as error:
        assert not isinstance(wanted, type) or not isinstance(error, wanted)


def test_interop():
    theirs = THEIRS(
        {"x": torch.ones(2, 3), "n": THEIRS({"y": torch.ones(2, 3)}, [2, 3]), "e": THEIRS({}, [2])},
        [2],
        names=["time"],
    )
    ours = OURS.from_tensordict(theirs)
    assert ours["n"].batch_size == (2, 3) and ours["e"].is_empty() and ours.names == ["time"]
    assert ours["x"] is theirs["x"]
    back = ours.to_tensordict()
    assert back["n"].batch_size == (2, 3) and back.names == ["time"] and back["x"] is theirs["x"]
    assert (back == theirs).all()
    ours["s"] = "text"
    assert ours.to_tensordict()["s"] == "text"
    with pytest.raises(ValueError, match="position"):
        OURS({"l": [torch.ones(1)]}).to_tensordict()


def test_copies_keep_everything():
    tree = OURS({"x": torch.ones(2, 3), "l": [torch.ones(2), 3, "s"], "n": None}, [2])
    tree.names = ["time"]
    tree.lock_()
    file = io.BytesIO()
    torch.save(tree, file)
    file.seek(0)
    for other in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree)), torch.load(file, weights_only=False)):
        assert other.same_layout(tree) and other.names == ["time"] and other.is_locked
        assert other["l", 2] == "s" and other["n"] is None and other.equal(tree)
        assert other["x"].data_ptr() != tree["x"].data_ptr()


def test_state_dicts_with_positions():
    tree = OURS({"l": [torch.zeros(2), torch.zeros(3)], "s": 3})
    tree.load_state_dict({"l.0": torch.ones(2), "l.1": torch.ones(3), "s": 3})
    assert tree["l", 1].tolist() == [1, 1, 1]
    value = torch.full((2,), 5.0)
    tree.load_state_dict({"l": {"0": value}}, strict=False, assign=True)
    assert tree["l", 0] is value
    with pytest.raises(ValueError, match="more"):
        tree.load_state_dict({**tree.state_dict(), "more": torch.ones(1)})


def test_norms_and_clipping():
    tree = OURS({"a": torch.full((4,), 3.0), "b": {"c": torch.full((4,), 4.0)}})
    assert tree.total_norm().item() == 10
    assert tree.clip_norm_(1.0).item() == 10
    assert abs(tree.total_norm().item() - 1) < 1e-5
    module = torch.nn.Linear(3, 2)
    module(torch.ones(1, 3)).sum().backward()
    twin = copy.deepcopy(module)
    for ours, theirs in zip(module.parameters(), twin.parameters()):
        theirs.grad = ours.grad.clone()
    got = OURS(dict(module.named_parameters())).clip_grad_norm_(0.5)
    wanted = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(module.weight.grad, twin.weight.grad)


def test_autograd_passes():
    x = torch.ones(3, requires_grad=True)
    tree = OURS({"a": x}, [3])
    torch.stack([tree * 2, tree + 1])[0]["a"].sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert tree.grad["a"].tolist() == [2, 2, 2]


def test_files(tmp_path):
    tree = both("nested")[0]
    seen = []
    leafpack.save_safetensors(tree, tmp_path / "t", progress=lambda done, total: seen.append(total))
    assert leafpack.load_safetensors(tmp_path / "t").flatten_keys().equal(OURS(dict(tree.flatten_keys().items())))
    assert seen
    with pytest.raises(FileNotFoundError, match="none"):
        leafpack.load_safetensors(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="none"):
        OURS.load_memmap(tmp_path / "none")
    (tmp_path / "bad").write_bytes((tmp_path / "t").read_bytes()[:-1])
    with pytest.raises(ValueError, match="bad"):
        leafpack.load_safetensors(tmp_path / "bad")
    with pytest.raises(ZeroDivisionError):
        leafpack.save_safetensors(tree, tmp_path / "u", progress=lambda done, total: 1 // 0)
    assert not (tmp_path / "u").exists()

    there = tree.memmap(tmp_path / "m")
    assert there.equal(tree) and there.is_locked
    assert_same(there, THEIRS.load_memmap(tmp_path / "m"))
    there["x"].zero_()
    assert OURS.load_memmap(tmp_path / "m")["x"].sum() == 0
    both("nested")[1].memmap(tmp_path / "theirs")
    assert OURS.load_memmap(tmp_path / "theirs").equal(tree)
    with pytest.raises(FileExistsError):
        tree.memmap(tmp_path / "m", existsok=False)
    tree.memmap(tmp_path / "theirs")  # takes the place of tensordict's
    assert_same(tree, THEIRS.load_memmap(tmp_path / "theirs"))


def test_files_of_tensordict_with_names_of_the_format(tmp_path):
    x = torch.arange(3.0)
    for place, key in enumerate(("shape", "device", "_type")):
        for value in (x, {"x": x}):
            folder = tmp_path / f"{place}{type(value).__name__}"
            THEIRS({"n": {key: value}}).memmap(folder)
            with pytest.raises(ValueError, match=f"n/meta.json: the entry of {key} was lost"):
                OURS.load_memmap(folder)
            with pytest.raises(FileExistsError, match=f"n/{key}"):
                OURS({"x": x}).memmap(folder)
    THEIRS({"_class": x, "_names": x + 1, "_format_version": x + 2}).memmap(tmp_path / "kept")
    assert OURS.load_memmap(tmp_path / "kept")["_names"].equal(x + 1)


def test_values_of_tensordict_are_replaced(tmp_path):
    """Whatever tensordict writes is one tree, also what is not read."""
    values = tensordict.NonTensorStack({1}, {2})
    theirs = THEIRS({"o": tensordict.NonTensorData({1, 2}), "s": values, "t": tensordict.NonTensorData(int)}, [2])
    theirs.memmap(tmp_path / "m")
    tree = OURS({"x": torch.ones(3)})
    tree.memmap(tmp_path / "m")
    assert OURS.load_memmap(tmp_path / "m").equal(tree)


def test_names_and_batch_size():
    tree = both("nested")[0]
    tree.names = ["a", None]
    assert tree.permute(1, 0).names == [None, "a"]
    tree.batch_size = [4]
    assert tree.batch_size == (4,) and tree["in"].batch_size == (4, 3)
    with pytest.raises(ValueError, match="in"):
        tree.batch_size = [5]


def test_methods_say_what_they_do():
    for name in ("set_", "update", "select", "apply", "split", "add_", "exp", "memmap", "load_state_dict"):
        assert getattr(OURS, name).__doc__ and getattr(OURS, name).__name__ == name
