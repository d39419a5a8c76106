"""The class LazyStack: what it holds, and its entries."""

from __future__ import annotations

import copy
from multiprocessing.reduction import ForkingPickler

import torch

from leafpack._tree.common import NO_VALUE, TensorDict, ops
from leafpack._tree.interop import as_tree, dtypes_apart


class LazyStack:
    """Trees of one batch size along a new batch dimension. Who changes one of them changes the stack.

    What is common to all trees is stacked, a copy, when it is asked for; `tensordicts` are the trees themselves, which
    may be stacks again. Methods that leafpack.TensorDict has go tree by tree where they can, and give a stack; those
    that go over the elements of all trees (sum, gather, flip, state_dict, numpy, ...) are those of the dense tree.
    """

    __slots__ = ("tensordicts", "stack_dim", "stack_dim_name")
    __hash__ = None

    def __init__(self, *tensordicts, stack_dim=0, stack_dim_name=None):
        if not tensordicts:
            raise ValueError("a stack of no trees has no batch size")
        for tree in tensordicts:
            if not is_tree(tree):
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
        self.stack_dim_name = stack_dim_name

    def _like(self, trees, stack_dim=None):
        """A stack of these trees along the dimension of this one, or along `stack_dim`."""
        dim = self.stack_dim if stack_dim is None else stack_dim
        return LazyStack(*trees, stack_dim=dim, stack_dim_name=self.stack_dim_name)

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
        names.insert(self.stack_dim, self.stack_dim_name)
        return names

    @names.setter
    def names(self, names):
        names = [None] * self.batch_dims if names is None else list(names)
        if len(names) != self.batch_dims:
            raise ValueError(f"{len(names)} names for {self.batch_dims} batch dimensions")
        own = names.pop(self.stack_dim)
        if own is not None and own in names:
            raise ValueError(f"two dimensions cannot both be called {own!r}")
        for tree in self.tensordicts:
            tree.names = names
        self.stack_dim_name = own

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

    def _tree(self):
        """The trees at the positions 0, 1, ... of one tree, not copied."""
        return TensorDict(dict(enumerate(self.tensordicts)))

    def _leafpack_positions(self):
        """What a tree gets that this stack is set into: a node with the trees, not copied, at 0, 1, ...

        Its batch size is that before the stack's dimension, so that the dimension can be told from it.
        """
        dim = min([self.stack_dim, *(t.stack_dim for t in self.tensordicts if isinstance(t, LazyStack))])
        node = TensorDict(batch_size=self.batch_size[: dim if dim == self.stack_dim else 0])
        for place, tree in enumerate(self.tensordicts):
            node._set(place, tree)
        return node

    def _dense_trees(self):
        """The trees that are no stacks, those of stacks in it too, from the first to the last."""
        for tree in self.tensordicts:
            if isinstance(tree, LazyStack):
                yield from tree._dense_trees()
            else:
                yield tree

    def _around(self, dense_trees):
        """The same stacks around other trees, an iterator of them."""
        return self._like(
            [
                tree._around(dense_trees) if isinstance(tree, LazyStack) else next(dense_trees)
                for tree in self.tensordicts
            ]
        )

    def __len__(self):
        return self.batch_size[0]

    def __bool__(self):
        raise RuntimeError("a tree is neither true nor false: use is_empty() or (a == b).all()")

    def __repr__(self):
        trees = ",\n  ".join(repr(tree).replace("\n", "\n  ") for tree in self.tensordicts)
        return f"leafpack.LazyStack(batch_size={list(self.batch_size)}, stack_dim={self.stack_dim}:\n  {trees})"

    def __reduce__(self):
        whole = TensorDict(dict(enumerate(self._dense_trees())))
        apart = dtypes_apart(whole)
        stack = self if apart is whole else self._around(iter(apart.values()))
        return _rebuild, (stack.tensordicts, self.stack_dim, self.stack_dim_name)

    def _reduce_shared(self):
        return _rebuild, (self.tensordicts, self.stack_dim, self.stack_dim_name)

    def __deepcopy__(self, memo):
        return _rebuild(copy.deepcopy(self.tensordicts, memo), self.stack_dim, self.stack_dim_name)

    # ---- Entries.

    def _common(self, include_nested, leaves_only):
        first, *others = self.tensordicts
        return [
            key
            for key, kind in _kinds(first, include_nested, leaves_only)
            if all(_kind_at(tree, key) is kind for tree in others)
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

        With `as_list` one entry per tree, also of stacks in it. ValueError, with the shapes, if tensors differ.
        """
        missing = [i for i, tree in enumerate(self.tensordicts) if key not in tree]
        if missing:
            if default is NO_VALUE:
                raise KeyError(f"{key!r}: tree {missing[0]} of the stack has none")
            return default
        if as_list:
            return [
                part
                for tree in self.tensordicts
                for part in (
                    tree.get(key, as_list=True) if isinstance(tree, LazyStack) else [tree._get(key)]
                )
            ]
        entries = [tree._get(key) for tree in self.tensordicts]
        kinds = {_kind(entry) for entry in entries}
        if kinds == {TensorDict}:
            return self._like(entries)
        if kinds == {torch.Tensor}:
            shapes = {tuple(entry.shape) for entry in entries}
            if len(shapes) > 1:
                raise ValueError(
                    f"{key!r}: tensors of the shapes {sorted(shapes)} cannot be stacked; as_list=True gives each"
                )
            return torch.stack(entries, self.stack_dim)
        return entries[0] if all(_same(entry, entries[0]) for entry in entries) else entries

    def _get(self, key):
        return self.get(key, NO_VALUE)

    def get_nestedtensor(self, key, *, layout=torch.jagged):
        """The tensors at `key` of all trees as one of torch's nested tensors, a copy."""
        return torch.nested.nested_tensor(self.get(key, NO_VALUE, as_list=True), layout=layout)

    def set(self, key, item, inplace=False, *, non_blocking=False):
        """Sets a part of `item`, a view, in each tree; a plain value in all of them."""
        parts = self._parts(item, key)
        for tree, part in zip(self.tensordicts, parts):
            if tree.is_locked and not (inplace and key in tree):
                raise RuntimeError(f"{key!r}: a tree of the stack is locked")
        for tree, part in zip(self.tensordicts, parts):
            tree.set(key, part, inplace)
        return self

    _set = set

    def setdefault(self, key, default, inplace=False):
        """What stands at `key`; `default`, which is put there, if a tree has nothing."""
        if key not in self:
            self.set(key, default, inplace)
        return self._get(key)

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
                tree.pop(key)
        return value

    def popitem(self):
        """Takes away the last entry that all trees have and returns its key and value."""
        names = self.keys()
        if not names:
            raise KeyError("the trees have no entry in common")
        return names[-1], self.pop(names[-1])

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

    def extend(self, tensordicts):
        """Puts trees behind the others."""
        trees = list(tensordicts)
        LazyStack(self.tensordicts[0], *trees)
        self.tensordicts += trees

    def get_at(self, key, idx, default=NO_VALUE):
        """These positions of what stands at `key`."""
        if default is not NO_VALUE and key not in self:
            return default
        return self._get(key)[idx]

    def set_at_(self, key, value, index, *, cast=False):
        """Copies `value` into these positions of what stands at `key`."""
        whole = self._get(key)
        if isinstance(value, torch.Tensor) and value.dtype != whole.dtype and not cast:
            raise ValueError(f"{key!r}: a value of {value.dtype} for {whole.dtype}; see cast")
        whole[index] = value
        return self.set_(key, whole)

    def get_item_shape(self, key):
        """The shape at `key`, with -1 where that of the trees differs."""
        shapes = [tree.get_item_shape(key) for tree in self.tensordicts]
        if len({len(shape) for shape in shapes}) > 1:
            raise ValueError(f"{key!r}: shapes of different lengths: {sorted(map(tuple, shapes))}")
        sizes = [s[0] if len(frozenset(s)) == 1 else -1 for s in zip(*shapes)]
        sizes.insert(self.stack_dim, len(self.tensordicts))
        return torch.Size(sizes)

    def replace(self, *args, **kwargs):
        """A stack of new nodes and the same tensors, with these entries in place of others or beside them."""
        if len(args) > 1:
            raise TypeError(f"replace takes one tree, not {len(args)}")
        result = self.copy()
        for source in (*args, kwargs):
            for key, value in source.items():
                result.set(key, value)
        return result

    def split_keys(self, *key_sets, **options):
        """One stack for each set of keys, and one of the rest."""
        rows = [tree.split_keys(*key_sets, **options) for tree in self.tensordicts]
        return tuple(map(self._like, zip(*rows)))

    def contiguous(self):
        """The dense tree, a copy. ValueError, with the path, where trees differ."""
        trees = [t.contiguous() if isinstance(t, LazyStack) else t for t in self.tensordicts]
        return ops.stack(trees, self.stack_dim)

    densify = contiguous

    def to_tensordict(self):
        """A tensordict.LazyStackedTensorDict of the same tensors."""
        import tensordict

        return tensordict.lazy_stack(
            [tree.to_tensordict() for tree in self.tensordicts], self.stack_dim
        )


def is_tree(value):
    return isinstance(value, (TensorDict, LazyStack))


def _kind(value):
    if is_tree(value):
        return TensorDict
    return torch.Tensor if isinstance(value, torch.Tensor) else object


def _kinds(tree, include_nested, leaves_only):
    """Keys of a tree and the kind of what stands there."""
    if isinstance(tree, LazyStack):
        return [(key, _kind_at(tree, key)) for key in tree._common(include_nested, leaves_only)]
    return [(key, _kind(value)) for key, value in ops.items(tree, include_nested, leaves_only)]


def _kind_at(tree, key):
    """The kind of what stands at `key`; None if nothing does, or trees of a stack differ."""
    if isinstance(tree, LazyStack):
        kinds = {_kind_at(part, key) for part in tree.tensordicts}
        return kinds.pop() if len(kinds) == 1 else None
    return _kind(tree._get(key)) if key in tree else None


def _same(a, b):
    return type(a) is type(b) and a == b


def _rebuild(trees, dim, name=None):
    return LazyStack(*trees, stack_dim=dim, stack_dim_name=name)


ForkingPickler.register(LazyStack, LazyStack._reduce_shared)
