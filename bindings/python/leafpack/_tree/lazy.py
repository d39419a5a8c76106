"""LazyStack: trees side by side along a batch dimension that are not copied together.

Their leaves may differ in shape and their keys may differ. Names and results are those of
tensordict.LazyStackedTensorDict.
"""

from __future__ import annotations

import torch

from leafpack._tree.common import NO_VALUE, TensorDict, is_key, ops
from leafpack._tree.interop import as_tree


class LazyStack:
    """Trees of one batch size along a new batch dimension. Who changes one of them changes the stack.

    What is common to all trees is stacked, a copy, when it is asked for; `tensordicts` are the trees themselves.
    """

    __slots__ = ("tensordicts", "stack_dim")
    __hash__ = None

    def __init__(self, *tensordicts, stack_dim=0):
        if not tensordicts:
            raise ValueError("a stack of no trees has no batch size")
        for tree in tensordicts:
            if not isinstance(tree, TensorDict):
                raise TypeError(f"a stack holds trees, not {type(tree).__name__}")
            if tree.batch_size != tensordicts[0].batch_size:
                raise ValueError(
                    f"stack: the batch sizes {list(tensordicts[0].batch_size)} and {list(tree.batch_size)}"
                )
        places = len(tensordicts[0].batch_size) + 1
        if not -places <= stack_dim < places:
            raise ValueError(
                f"stack: dimension {stack_dim} of a tree with {places - 1} batch dimensions"
            )
        self.tensordicts = list(tensordicts)
        self.stack_dim = stack_dim % places

    # ---- What it is.

    @property
    def batch_size(self):
        sizes = list(self.tensordicts[0].batch_size)
        sizes.insert(self.stack_dim, len(self.tensordicts))
        return torch.Size(sizes)

    shape = batch_size

    @property
    def batch_dims(self):
        return len(self.tensordicts[0].batch_size) + 1

    ndim = batch_dims

    @property
    def names(self):
        names = list(self.tensordicts[0].names)
        names.insert(self.stack_dim, None)
        return names

    @property
    def device(self):
        devices = {tree.device for tree in self.tensordicts}
        return devices.pop() if len(devices) == 1 else None

    @property
    def is_locked(self):
        return all(tree.is_locked for tree in self.tensordicts)

    @property
    def requires_grad(self):
        return any(tree.requires_grad for tree in self.tensordicts)

    def dim(self):
        return self.batch_dims

    ndimension = dim

    def size(self, dim=None):
        return self.batch_size if dim is None else self.batch_size[dim]

    def numel(self):
        return self.batch_size.numel()

    def is_empty(self):
        return all(tree.is_empty() for tree in self.tensordicts)

    def bytes(self, *, count_duplicates=True):
        return self._tree().bytes(count_duplicates=count_duplicates)

    def layout_digest(self):
        return self._tree().layout_digest()

    def _tree(self):
        """The trees at the positions 0, 1, ... of one tree, not copied."""
        return TensorDict(dict(enumerate(self.tensordicts)))

    def __len__(self):
        return self.batch_size[0]

    def __bool__(self):
        raise RuntimeError("a tree is neither true nor false: use is_empty() or (a == b).all()")

    def __repr__(self):
        trees = ",\n  ".join(repr(tree).replace("\n", "\n  ") for tree in self.tensordicts)
        return f"leafpack.LazyStack(batch_size={list(self.batch_size)}, stack_dim={self.stack_dim}:\n  {trees})"

    def __reduce__(self):
        return _rebuild, (self.tensordicts, self.stack_dim)

    # ---- Entries.

    def _common(self, include_nested, leaves_only):
        first, *others = self.tensordicts
        return [
            key
            for key, value in ops.items(first, include_nested, leaves_only)
            if all(key in tree and _kind(tree._get(key)) is _kind(value) for tree in others)
        ]

    def keys(self, include_nested=False, leaves_only=False, *, sort=False):
        """Keys that all trees have, in canonical order."""
        return self._common(include_nested, leaves_only)

    def values(self, include_nested=False, leaves_only=False, *, sort=False):
        return [self.get(key) for key in self._common(include_nested, leaves_only)]

    def items(self, include_nested=False, leaves_only=False, *, sort=False):
        return [(key, self.get(key)) for key in self._common(include_nested, leaves_only)]

    def __contains__(self, key):
        return all(key in tree for tree in self.tensordicts)

    def get(self, key, default=None, *, as_list=False):
        """What all trees have at `key`: a stacked tensor, a stack of nodes, or the plain value that all have.

        With `as_list` one entry per tree. ValueError, with the shapes, if tensors differ.
        """
        missing = [i for i, tree in enumerate(self.tensordicts) if key not in tree]
        if missing:
            if default is NO_VALUE:
                raise KeyError(f"{key!r}: tree {missing[0]} of the stack has none")
            return default
        entries = [tree._get(key) for tree in self.tensordicts]
        if as_list:
            return entries
        kinds = {_kind(entry) for entry in entries}
        if kinds == {TensorDict}:
            return LazyStack(*entries, stack_dim=self.stack_dim)
        if kinds == {torch.Tensor}:
            shapes = {tuple(entry.shape) for entry in entries}
            if len(shapes) > 1:
                raise ValueError(
                    f"{key!r}: tensors of the shapes {sorted(shapes)} cannot be stacked; as_list=True gives each"
                )
            return torch.stack(entries, self.stack_dim)
        return entries[0] if all(_same(entry, entries[0]) for entry in entries) else entries

    def set(self, key, item, inplace=False, *, non_blocking=False):
        """Sets a part of `item`, a view, in each tree; a plain value in all of them."""
        parts = self._parts(item, key)
        for tree, part in zip(self.tensordicts, parts):
            if tree.is_locked and not (inplace and key in tree):
                raise RuntimeError(f"{key!r}: a tree of the stack is locked")
        for tree, part in zip(self.tensordicts, parts):
            tree.set(key, part, inplace)
        return self

    def set_(self, key, item, *, non_blocking=False, cast=False):
        """Copies the parts of `item` into the tensors at `key`."""
        for tree, part in zip(self.tensordicts, self._parts(item, key)):
            tree.set_(key, part, cast=cast)
        return self

    def _parts(self, item, what):
        if isinstance(item, LazyStack) and item.stack_dim == self.stack_dim:
            parts = item.tensordicts
        elif isinstance(item, (torch.Tensor, TensorDict, LazyStack)):
            size = tuple(item.shape[: self.batch_dims])
            if size != tuple(self.batch_size):
                raise ValueError(
                    f"{what!r}: the shape {list(item.shape)} does not begin with the batch size {list(self.batch_size)}"
                )
            parts = item.unbind(self.stack_dim)
        else:
            return [item] * len(self.tensordicts)
        if len(parts) != len(self.tensordicts):
            raise ValueError(f"{what!r}: {len(parts)} parts for {len(self.tensordicts)} trees")
        return parts

    def update(self, input_dict_or_td, clone=False, inplace=False, *, keys_to_update=None):
        for tree, part in zip(self.tensordicts, self._trees_of(input_dict_or_td)):
            tree.update(part, clone, inplace, keys_to_update=keys_to_update)
        return self

    def update_(self, input_dict_or_td, clone=False, *, keys_to_update=None, cast=False):
        for tree, part in zip(self.tensordicts, self._trees_of(input_dict_or_td)):
            tree.update_(part, clone, keys_to_update=keys_to_update, cast=cast)
        return self

    def _trees_of(self, other):
        if not isinstance(other, (LazyStack, TensorDict)):
            other = as_tree(other, TensorDict(batch_size=self.batch_size), "value")
        return self._parts(other, "the tree")

    def pop(self, key, default=NO_VALUE):
        value = self.get(key, default)
        if key in self:
            for tree in self.tensordicts:
                ops.pop(tree, key)
        return value

    def del_(self, key):
        for tree in self.tensordicts:
            if key not in tree:
                raise KeyError(f"{key!r}: a tree of the stack has none")
        for tree in self.tensordicts:
            tree.del_(key)
        return self

    def append(self, tensordict):
        """Puts a tree behind the others."""
        self.insert(len(self.tensordicts), tensordict)

    def insert(self, index, tensordict):
        """Puts a tree between the others."""
        LazyStack(self.tensordicts[0], tensordict)
        self.tensordicts.insert(index, tensordict)

    # ---- Indexing.

    def __getitem__(self, key):
        if is_key(key):
            return self.get(key, NO_VALUE)
        before, here, after = self._split(key)
        inner = (*before, *after)
        dim = self.stack_dim + sum(1 if item is None else 0 for item in before)
        dim -= sum(
            hasattr(item, "__index__") and not isinstance(item, torch.Tensor) for item in before
        )
        trees = self.tensordicts
        if isinstance(here, slice):
            chosen = trees[here]
        elif hasattr(here, "__index__") and not (isinstance(here, torch.Tensor) and here.dim() > 0):
            place = int(here)
            if not -len(trees) <= place < len(trees):
                raise IndexError(f"position {place} of a stack of {len(trees)}")
            return ops.index(trees[place], inner) if inner else trees[place]
        else:
            chosen = [trees[i] for i in self._positions(here)]
        if not chosen:
            empty = (
                self.contiguous() if self._same_layout() else TensorDict(batch_size=self.batch_size)
            )
            return ops.index(empty, key)
        if inner:
            chosen = [ops.index(tree, inner) for tree in chosen]
        return LazyStack(*chosen, stack_dim=dim)

    def _same_layout(self):
        return all(tree.same_layout(self.tensordicts[0]) for tree in self.tensordicts)

    def _positions(self, item):
        item = torch.as_tensor(list(item) if isinstance(item, range) else item)
        if item.dim() != 1:
            raise IndexError("an index along a stack has one dimension")
        if item.dtype is torch.bool:
            if len(item) != len(self.tensordicts):
                raise IndexError(f"a mask of {len(item)} for a stack of {len(self.tensordicts)}")
            return item.nonzero().flatten().tolist()
        places = item.tolist()
        for place in places:
            if not -len(self.tensordicts) <= place < len(self.tensordicts):
                raise IndexError(f"position {place} of a stack of {len(self.tensordicts)}")
        return places

    def _split(self, key):
        """The parts of an index before, at, and behind the dimension of the stack."""
        items = list(key) if isinstance(key, tuple) else [key]
        used = sum(1 for item in items if item is not None and item is not Ellipsis)
        if used > self.batch_dims:
            raise IndexError(f"{used} indices for {self.batch_dims} batch dimensions")
        if Ellipsis in [item for item in items if not isinstance(item, torch.Tensor)]:
            place = next(i for i, item in enumerate(items) if item is Ellipsis)
            items[place : place + 1] = [slice(None)] * (self.batch_dims - used)
        before, rest = [], list(items)
        seen = 0
        while rest and (seen < self.stack_dim or rest[0] is None):
            item = rest.pop(0)
            if isinstance(item, (torch.Tensor, list, range)):
                raise IndexError(
                    "in front of the dimension of a stack stand numbers, slices and None"
                )
            before.append(item)
            seen += item is not None
        before += [slice(None)] * (self.stack_dim - seen)
        return tuple(before), rest.pop(0) if rest else slice(None), tuple(rest)

    def __setitem__(self, key, value):
        if is_key(key):
            self.set(key, value)
            return
        target = self[key]
        if isinstance(value, (bool, int, float, complex)):
            self._fill(key, value)
        elif isinstance(target, LazyStack):
            target._write(value)
        else:
            before, here, after = self._split(key)
            inner = (*before, *after)
            tree = self.tensordicts[int(here)]
            ops.set_index(tree, inner if inner else Ellipsis, as_tree(value, target), False)

    def _fill(self, key, number):
        before, here, after = self._split(key)
        inner = (*before, *after) or (Ellipsis,)
        trees = self.tensordicts
        if isinstance(here, slice):
            chosen = trees[here]
        elif hasattr(here, "__index__") and not (isinstance(here, torch.Tensor) and here.dim() > 0):
            chosen = [trees[int(here)]]
        else:
            chosen = [trees[i] for i in self._positions(here)]
        for tree in chosen:
            ops.fill_index(tree, inner, number)

    def _write(self, value):
        self.update_(value)

    def __iter__(self):
        return iter(self.unbind(0))

    # ---- Shapes.

    def unbind(self, dim=0):
        """One tree, or one stack, per position of a batch dimension."""
        dim = self._dim(dim)
        if dim == self.stack_dim:
            return tuple(self.tensordicts)
        inner = dim - (dim > self.stack_dim)
        outer = self.stack_dim - (dim < self.stack_dim)
        rows = [ops.unbind(tree, inner) for tree in self.tensordicts]
        return tuple(LazyStack(*parts, stack_dim=outer) for parts in zip(*rows))

    def _dim(self, dim):
        if not -self.batch_dims <= dim < self.batch_dims:
            raise ValueError(f"dimension {dim} of a stack with {self.batch_dims} batch dimensions")
        return dim % self.batch_dims

    def split(self, split_size, dim=0):
        dim = self._dim(dim)
        size = self.batch_size[dim]
        if isinstance(split_size, int):
            if split_size < 1:
                raise ValueError(f"split: parts of {split_size}")
            split_size = [min(split_size, size - at) for at in range(0, size, split_size)]
        if sum(split_size) != size:
            raise ValueError(f"split: the sizes {list(split_size)} of {size} positions")
        parts, at = [], 0
        for count in split_size:
            parts.append(self[(*[slice(None)] * dim, slice(at, at + count))])
            at += count
        return tuple(parts)

    def chunk(self, chunks, dim=0):
        size = self.batch_size[self._dim(dim)]
        return self.split(max(1, -(-size // chunks)), dim)

    def unsqueeze(self, dim):
        places = self.batch_dims + 1
        if not -places <= dim < places:
            raise ValueError(f"unsqueeze: dimension {dim} of {places}")
        dim %= places
        if dim <= self.stack_dim:
            trees = [ops.unsqueeze(tree, dim) for tree in self.tensordicts]
            return LazyStack(*trees, stack_dim=self.stack_dim + 1)
        trees = [ops.unsqueeze(tree, dim - 1) for tree in self.tensordicts]
        return LazyStack(*trees, stack_dim=self.stack_dim)

    def permute(self, *dims_list, dims=None):
        dims = dims if dims is not None else dims_list
        dims = (
            tuple(dims[0]) if len(dims) == 1 and not hasattr(dims[0], "__index__") else tuple(dims)
        )
        order = [self._dim(dim) for dim in dims]
        if sorted(order) != list(range(self.batch_dims)):
            raise ValueError(f"permute: {tuple(dims)} is no order of {self.batch_dims} dimensions")
        inner = [dim - (dim > self.stack_dim) for dim in order if dim != self.stack_dim]
        trees = [ops.permute(tree, tuple(inner)) for tree in self.tensordicts]
        return LazyStack(*trees, stack_dim=order.index(self.stack_dim))

    def transpose(self, dim0, dim1):
        order = list(range(self.batch_dims))
        dim0, dim1 = self._dim(dim0), self._dim(dim1)
        order[dim0], order[dim1] = dim1, dim0
        return self.permute(*order)

    def contiguous(self):
        """The dense tree, a copy. ValueError, with the path, where trees differ."""
        return ops.stack(self.tensordicts, self.stack_dim)

    densify = contiguous

    def to_tensordict(self):
        """A tensordict.LazyStackedTensorDict of the same tensors."""
        import tensordict

        return tensordict.lazy_stack(
            [tree.to_tensordict() for tree in self.tensordicts], self.stack_dim
        )

    # ---- Tree by tree.

    def _mapped(self, function):
        return LazyStack(*map(function, self.tensordicts), stack_dim=self.stack_dim)

    def apply(self, fn, *others, batch_size=None, inplace=False, **options):
        """apply of each tree; `fn` gets tensors without the dimension of the stack."""
        rows = [self._trees_of(other) for other in others]
        if batch_size is not None:
            batch_size = list(batch_size)
            if len(batch_size) <= self.stack_dim or batch_size.pop(self.stack_dim) != len(
                self.tensordicts
            ):
                raise ValueError("the batch size must keep the dimension of the stack")
        trees = [
            tree.apply(fn, *beside, batch_size=batch_size, inplace=inplace, **options)
            for tree, *beside in zip(self.tensordicts, *rows)
        ]
        return self if inplace else LazyStack(*trees, stack_dim=self.stack_dim)

    def named_apply(self, fn, *others, **options):
        """named_apply of each tree; names begin with the position of the tree in the stack."""
        rows = [self._trees_of(other) for other in others]
        trees = [
            tree.named_apply(fn, *beside, **options)
            for tree, *beside in zip(self.tensordicts, *rows)
        ]
        return LazyStack(*trees, stack_dim=self.stack_dim)

    def apply_(self, fn, *others):
        return self.apply(fn, *others, inplace=True)

    def all(self):
        return all(tree.all() for tree in self.tensordicts)

    def any(self):
        return any(tree.any() for tree in self.tensordicts)

    def equal(self, other):
        """Whether the other is a stack along the same dimension of equal trees."""
        return self._all_pairs(other, TensorDict.equal)

    def allclose(self, other, rtol=1e-5, atol=1e-8, equal_nan=False):
        return self._all_pairs(other, lambda a, b: a.allclose(b, rtol, atol, equal_nan))

    def _all_pairs(self, other, question):
        if not isinstance(other, LazyStack) or other.batch_size != self.batch_size:
            return False
        if other.stack_dim != self.stack_dim:
            return False
        return all(question(a, b) for a, b in zip(self.tensordicts, other.tensordicts))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        function = _TORCH_FUNCTIONS.get(func)
        if function is None:
            return NotImplemented
        return function(*args, **(kwargs or {}))


def _kind(value):
    return (
        TensorDict
        if isinstance(value, TensorDict)
        else torch.Tensor if isinstance(value, torch.Tensor) else object
    )


def _same(a, b):
    return type(a) is type(b) and a == b


def _rebuild(trees, dim):
    return LazyStack(*trees, stack_dim=dim)


_TREE_BY_TREE = """
    select exclude flatten_keys unflatten_keys rename_key_ to cpu cuda float double half bfloat16 int bool clone copy detach
    zero_ requires_grad_ lock_ unlock_ empty norm abs neg exp log sqrt sigmoid tanh sin cos sign round floor ceil
    reciprocal isfinite isnan __neg__ __abs__ __invert__ clear_device_ zero_grad share_memory_
""".split()
_WITH_OTHERS = """
    add sub mul div pow maximum minimum add_ sub_ mul_ div_ pow_ clamp_min clamp_max lerp lerp_ __add__ __sub__ __mul__
    __truediv__ __pow__ __radd__ __rsub__ __rmul__ __rtruediv__ __rpow__ __iadd__ __isub__ __imul__ __itruediv__ __eq__
    __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__
""".split()


def _tree_by_tree(name):
    in_place = name.endswith("_") and not name.startswith("__")

    def method(self, *args, **kwargs):
        made = [getattr(tree, name)(*args, **kwargs) for tree in self.tensordicts]
        return self if in_place else LazyStack(*made, stack_dim=self.stack_dim)

    return method


def _with_others(name):
    in_place = name.startswith("__i") or (name.endswith("_") and not name.startswith("__"))

    def method(self, other, *args, **kwargs):
        if isinstance(other, (LazyStack, TensorDict)):
            others = self._trees_of(other)
        elif isinstance(other, torch.Tensor) and other.dim() > 0:
            others = self._parts(other, "the tensor")
        elif isinstance(other, (torch.Tensor, int, float, complex)):
            others = [other] * len(self.tensordicts)
        else:
            return NotImplemented
        made = [
            getattr(tree, name)(beside, *args, **kwargs)
            for tree, beside in zip(self.tensordicts, others)
        ]
        return self if in_place else LazyStack(*made, stack_dim=self.stack_dim)

    return method


def _torch_stack(tensors, dim=0, *, out=None):
    """A stack of stacks: its trees are the dense stacks of the trees of each."""
    if out is not None:
        raise TypeError("stack of lazy stacks takes no out")
    stacks = list(tensors)
    first = stacks[0]
    places = first.batch_dims + 1
    if not -places <= dim < places:
        raise ValueError(f"stack: dimension {dim} of {places}")
    dim %= places
    if any(not isinstance(s, LazyStack) or s.stack_dim != first.stack_dim for s in stacks):
        raise ValueError("stack: all must be stacks along the same dimension")
    if any(len(s.tensordicts) != len(first.tensordicts) for s in stacks):
        raise ValueError("stack: stacks of different lengths")
    inner = dim if dim <= first.stack_dim else dim - 1
    trees = [ops.stack(list(row), inner) for row in zip(*(s.tensordicts for s in stacks))]
    return LazyStack(*trees, stack_dim=first.stack_dim + (dim <= first.stack_dim))


def _torch_cat(tensors, dim=0, *, out=None):
    if out is not None:
        raise TypeError("cat of lazy stacks takes no out")
    stacks = list(tensors)
    first = stacks[0]
    dim = first._dim(dim)
    if any(not isinstance(s, LazyStack) or s.stack_dim != first.stack_dim for s in stacks):
        raise ValueError("cat: all must be stacks along the same dimension")
    if dim == first.stack_dim:
        return LazyStack(*(tree for s in stacks for tree in s.tensordicts), stack_dim=dim)
    inner = dim - (dim > first.stack_dim)
    trees = [ops.cat(list(row), inner) for row in zip(*(s.tensordicts for s in stacks))]
    return LazyStack(*trees, stack_dim=first.stack_dim)


def _method(name):
    def function(input, *args, **kwargs):
        return getattr(input, name)(*args, **kwargs)

    return function


_TORCH_FUNCTIONS = {
    torch.stack: _torch_stack,
    torch.cat: _torch_cat,
    torch.concat: _torch_cat,
    **{
        getattr(torch, name): _method(name)
        for name in "unbind split chunk unsqueeze permute transpose clone detach abs neg exp log sqrt add sub mul div".split()
    },
}


def lazy_stack(input, dim=0, *, out=None):
    """A LazyStack of trees that are not copied; they may differ in shapes and keys."""
    trees = list(input)
    if out is None:
        return LazyStack(*trees, stack_dim=dim)
    out.update_(LazyStack(*trees, stack_dim=dim))
    return out


def maybe_dense_stack(input, dim=0, *, out=None):
    """The dense stack where trees have one layout, a LazyStack where they differ."""
    trees = list(input)
    if trees and all(isinstance(t, TensorDict) and t.same_layout(trees[0]) for t in trees):
        return TensorDict.stack(trees, dim, out=out)
    return lazy_stack(trees, dim, out=out)


def to_lazystack(self, dim=0):
    """A LazyStack of the parts of this tree along a batch dimension; views."""
    return LazyStack(*ops.unbind(self, dim), stack_dim=dim)


METHODS = {
    "lazy_stack": staticmethod(lazy_stack),
    "maybe_dense_stack": staticmethod(maybe_dense_stack),
    "to_lazystack": to_lazystack,
}


def attach():
    """Gives LazyStack the methods that go tree by tree. After leafpack.TensorDict has its own."""
    for make, names in ((_tree_by_tree, _TREE_BY_TREE), (_with_others, _WITH_OTHERS)):
        for name in names:
            method = make(name)
            method.__name__ = name
            method.__qualname__ = f"LazyStack.{name}"
            method.__doc__ = getattr(TensorDict, name).__doc__
            setattr(LazyStack, name, method)
