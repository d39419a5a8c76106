"""Random programs of operations on a tensordict and on a leafpack.TensorDict: after each step values, keys, batch
sizes, which results share storage with what was there, and whether an error was raised, must be the same.

LEAFPACK_EXAMPLES=10000 makes a long run of it. A failure prints the shortest program that fails.
"""

import os

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beside import OURS, THEIRS, assert_same, is_tree, storages

EXAMPLES = int(os.environ.get("LEAFPACK_EXAMPLES", "150"))
KEYS = ("a", "b", "n", ("n", "a"), ("n", "c"), ("n", "m", "b"))
DTYPES = (torch.float32, torch.int64)


def _values(shape, dtype, start=0):
    count = torch.Size(shape).numel()
    return (torch.arange(start, start + count) % 7 - 2).reshape(shape).to(dtype)


@st.composite
def trees(draw):
    """Children and batch size. Leaves are made anew for each kind of tree."""
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    leaf = st.tuples(st.lists(st.integers(1, 2), max_size=2), st.sampled_from(DTYPES))
    flat = draw(st.dictionaries(st.sampled_from("ab"), leaf, max_size=2))
    nested = draw(st.dictionaries(st.sampled_from("ac"), leaf, max_size=2))
    deep = draw(st.dictionaries(st.sampled_from("b"), leaf, max_size=1))
    return batch, flat, nested, deep


def build(kind, description):
    batch, *levels = description
    flat, nested, deep = (
        {k: _values((*batch, *extra), dtype, len(k)) for k, (extra, dtype) in level.items()}
        for level in levels
    )
    if deep:
        nested["m"] = kind(deep, batch)
    if nested:
        flat["n"] = kind(nested, batch)
    return kind(flat, batch)


def _leaf(t, extra, dtype, wrong):
    batch = list(t.batch_size)
    if wrong:
        batch = [size + 1 for size in batch] or [5]
    return _values((*batch, *extra), dtype)


def _op_set(t, key, extra, dtype, wrong):
    return t.set(key, _leaf(t, extra, dtype, wrong and len(t.batch_size) > 0))


def _inside(t, dim):
    """`dim` as a place that a new dimension can have: tensordict takes others where leaves have them."""
    return max(min(dim, len(t.batch_size)), -len(t.batch_size) - 1)


def _more(x):
    return ~x if x.dtype is torch.bool else x + 1


def _mask(t):
    return torch.arange(t.batch_size[0]) % 2 == 0


def _dense(value):
    return value.contiguous() if hasattr(value, "stack_dim") else value


def _has_empty_nodes(tree):
    """tensordict's auto_batch_size_ counts an empty node that was set first, but no other."""
    return any(is_tree(value) and value.is_empty() for value in tree.values(True))


def _has_longer_batches(tree):
    return any(is_tree(value) and value.batch_size != tree.batch_size for value in tree.values(True))


def _assigned(t, index, value):
    t[index] = value
    return t


def _order(t, seed):
    dims = list(range(len(t.batch_size)))
    return dims[seed % len(dims) :] + dims[: seed % len(dims)] if dims else dims


dims = st.integers(-3, 3)
small = st.integers(0, 3)
keys = st.sampled_from(KEYS)
top_keys = st.sampled_from(("a", "b", "n"))

# Name, function of a tree and what is drawn for it.
OPERATIONS = {
    "set": (_op_set, keys, st.lists(st.integers(1, 2), max_size=2), st.sampled_from(DTYPES), st.booleans()),
    "setdefault": (lambda t, k: t.setdefault(k, _leaf(t, [2], torch.float32, False)), keys),
    "get": (lambda t, k: t.get(k), keys),
    "getitem": (lambda t, k: t[k], keys),
    "pop": (lambda t, k: t.pop(k), keys),
    "pop default": (lambda t, k: t.pop(k, None), keys),
    "del_": (lambda t, k: t.del_(k), keys),
    "rename_key_": (lambda t, a, b: t.rename_key_(a, b) if a != b else t, top_keys, top_keys),
    "rename safe": (lambda t, a, b: t.rename_key_(a, b, safe=True) if a != b else t, top_keys, top_keys),
    "select": (lambda t, ks, strict: t.select(*ks, strict=strict), st.lists(keys.filter(lambda k: k != "n"), max_size=3), st.booleans()),
    "exclude": (lambda t, ks: t.exclude(*ks), st.lists(keys, max_size=3)),
    "update": (lambda t, k: t.update({k: _leaf(t, [1], torch.float32, False)}), st.sampled_from(("a", "b"))),
    "update tree": (lambda t: t.update(t.apply(lambda x: x + 1)),),
    "update_": (lambda t: t.update_(t.apply(_more)),),
    "flatten_keys": (lambda t, s: t.flatten_keys(s), st.sampled_from((".", "_"))),
    "flatten and back": (lambda t: t.flatten_keys(".").unflatten_keys("."),),
    "empty": (lambda t: t.empty(),),
    "clear": (lambda t: t.clear(),),
    "index int": (lambda t, i: t[i], st.integers(-4, 4)),
    "index slice": (lambda t, a, b, c: t[a:b:c], dims, dims, st.integers(1, 2)),
    "index none": (lambda t: t[None],),
    "index ellipsis": (lambda t, i: t[..., i], st.integers(-2, 2)),
    "index two": (lambda t, i: t[:, i] if len(t.batch_size) > 1 else t, st.integers(-2, 2)),
    "index mask": (lambda t: t[_mask(t)],),
    "index tensor": (lambda t, i: t[torch.tensor(i)], st.lists(st.integers(-1, 2), min_size=1, max_size=3)),
    "set index": (lambda t, i: _assigned(t, i, t[i].apply(lambda x: (x + 1).to(x.dtype))), st.integers(-2, 2)),
    "fill index": (lambda t, i: _assigned(t, i, 3) if t.batch_size else t, st.integers(-2, 2)),
    "split": (lambda t, n, d: list(t.split(n, d)), st.integers(1, 3), dims),
    "chunk": (lambda t, n, d: list(t.chunk(n, d)), st.integers(1, 3), dims),
    "unbind": (lambda t, d: list(t.unbind(d)), dims),
    "stack": (lambda t, d: torch.stack([t, t.apply(lambda x: x + 1)], _inside(t, d)), dims),
    # tensordict counts dimensions that are too far down from the end again.
    "cat": (lambda t, d: torch.cat([t, t.apply(lambda x: x + 1)], max(d, -len(t.batch_size))), dims),
    "reshape": (lambda t: t.reshape(-1),),
    "permute": (lambda t, s: t.permute(*_order(t, s)), small),
    "transpose": (lambda t, a, b: t.transpose(a, b), dims, dims),
    "squeeze": (lambda t, d: t.squeeze(d), dims),
    "squeeze all": (lambda t: t.squeeze() if any(n != 1 for n in t.batch_size) else t,),
    "unsqueeze": (lambda t, d: t.unsqueeze(d), dims),
    "expand": (lambda t, n: t.expand(n, *t.batch_size), st.integers(1, 2)),
    "flatten": (lambda t, a, b: t.flatten(a, b) if len(t.batch_size) > 1 else t, st.integers(0, 1), st.integers(1, 1)),
    "to": (lambda t, d: t.to(d), st.sampled_from((torch.float64, torch.float32))),
    "clone": (lambda t, r: t.clone(recurse=r), st.booleans()),
    "detach": (lambda t: t.detach(),),
    "contiguous": (lambda t: t.contiguous(),),
    "apply": (lambda t: t.apply(lambda x: x * 2),),
    "apply drop": (lambda t, n: t.apply(lambda x: x if x.dim() != n else None, filter_empty=False), small),
    "named_apply": (lambda t: t.named_apply(lambda n, x: x + len(n), nested_keys=True),),
    "zero_": (lambda t: t.zero_(),),
    "+": (lambda t: t + 1,),
    "* tree": (lambda t: t * t,),
    "sub_": (lambda t: t.sub_(1),),
    "neg": (lambda t: -t,),
    "abs": (lambda t: abs(t),),
    "clamp": (lambda t, a: t.clamp(a, 3), st.integers(-1, 1)),
    ">=": (lambda t: t >= 1,),
    "all": (lambda t: (t == t).all(),),
    "keys": (lambda t: sorted(map(str, t.keys(True, True))),),
    # tensordict says 1 of a batch of none.
    "numbers": (lambda t: [max(1, t.numel()), len(t.batch_size), t.is_empty(), t.depth, t.param_count()],),
    "sum": (lambda t, k: t.sum(0, keepdim=k), st.booleans()),
    "sum all": (lambda t: t.sum(),),
    # tensordict's forgets the further batch dimensions of nodes that have some.
    "amax": (lambda t: t if _has_longer_batches(t) else t.amax(0),),
    "any": (lambda t, d: (t > 1).any(d), st.integers(-1, 0)),
    "repeat": (lambda t, n: t.repeat(*[n] * len(t.batch_size)) if t.batch_size else t, st.integers(1, 2)),
    "repeat_interleave": (lambda t, n: t.repeat_interleave(n, dim=0), st.integers(0, 2)),
    "roll": (lambda t, n: t.roll(n, 0), dims),
    "flip": (lambda t, d: t.flip(d), st.integers(-1, 0)),
    "narrow": (lambda t, a, n: t.narrow(0, a, n), small, small),
    "tensor_split": (lambda t, n: list(t.tensor_split(n)), st.integers(1, 3)),
    "movedim": (lambda t, a, b: t.movedim(a, b), st.integers(0, 2), st.integers(0, 2)),
    "masked_fill": (lambda t: t.masked_fill(_mask(t), 1),),
    "atleast_2d": (lambda t: t.atleast_2d(),),
    "auto_batch_size_": (lambda t: t if t.is_locked or _has_empty_nodes(t) else t.auto_batch_size_(),),
    "lock": (lambda t: t.lock_(),),
    "unlock": (lambda t: t.unlock_(),),
    "replace": (lambda t: t.replace({"a": _leaf(t, [3], torch.float32, False)}),),
    "separates": (lambda t, k: t.separates(k) if k in t else t, top_keys),
    "state_dict": (lambda t: t.load_state_dict(t.apply(_more).state_dict()),),
    "lazy": (lambda t, i: type(t).lazy_stack([t, t + 1], 0)[i], st.integers(-2, 1)),
    "lazy get": (lambda t, k: _dense(type(t).lazy_stack([t, t + 1], 0).get(k, None)), st.sampled_from(("a", "b"))),
}  # fmt: skip


@st.composite
def steps(draw):
    name = draw(st.sampled_from(sorted(OPERATIONS)))
    return name, *(draw(argument) for argument in OPERATIONS[name][1:])


def _run(tree, step):
    """The result and no error, or no result and the error."""
    try:
        return OPERATIONS[step[0]][0](tree, *step[1:]), None
    except Exception as error:
        return None, error


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 150,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(trees(), st.lists(steps(), min_size=1, max_size=6))
def test_programs(description, program):
    ours, theirs = build(OURS, description), build(THEIRS, description)
    for step in program:
        views = (storages(ours), storages(theirs))
        before = ours.clone()
        got, our_error = _run(ours, step)
        wanted, their_error = _run(theirs, step)
        if (our_error is None) != (their_error is None) and before.is_empty():
            return  # without leaves tensordict does not look at dimensions, and ours not at locks
        assert (our_error is None) == (their_error is None), (
            f"{step}: ours {our_error!r}, tensordict {their_error!r}"
        )
        if our_error is not None:  # tensordict may have begun the work
            # Kernels that write several leaves stop at the first that they refuse.
            assert step[0] in ("sub_", "zero_") or ours.equal(before), f"an error of {step} changed the tree"
            return
        assert_same(ours, theirs, f"the tree after {step}")
        assert step[0] not in ("lock", "unlock") or ours.is_locked == theirs.is_locked, step
        assert_same(got, wanted, f"result of {step}", views=views)
        if isinstance(got, list) and got and is_tree(got[0]):
            got, wanted = got[0], wanted[0]
        if is_tree(got):
            ours, theirs = got, wanted
        if ours.is_locked != theirs.is_locked:
            return  # tensordict's views of a locked tree are locked, ours are not


def test_every_operation_is_there():
    """So that no case is an error on both sides because of a wrong name."""
    for name, (function, *arguments) in OPERATIONS.items():
        done = 0
        for sizes in ([2, 3], [1, 2], [2], []):
            tree = build(OURS, (sizes, {"a": ([2], DTYPES[0]), "b": ([], DTYPES[1])}, {"a": ([], DTYPES[0])}, {}))
            if arguments:
                continue
            _, error = _run(tree, (name,))
            assert not isinstance(error, (AttributeError, NameError)), f"{name}: {error!r}"
            done += error is None
        assert arguments or done, name
