"""More about entries: of what kind they are, parts of a tree by key, and changes of single entries."""

from __future__ import annotations

import collections.abc

import torch

from leafpack._tree import keys
from leafpack._tree.common import NO_VALUE, TensorDict, ops, tensors_of
from leafpack._tree.interop import as_tree


def clear(self):
    """Takes away all entries."""
    self._clear()
    return self


def popitem(self):
    """Takes away the last entry and returns its key and value."""
    names = ops.keys(self, False, False)
    if not names:
        raise KeyError("the tree is empty")
    return names[-1], ops.pop(self, names[-1])


def fill_(self, key, value):
    """Fills the tensor at `key`, or all tensors of the node there."""
    entry = self._get(key)
    with torch.no_grad():
        for leaf in tensors_of(entry) if isinstance(entry, TensorDict) else (entry,):
            leaf.fill_(value)
    return self


def get_at(self, key, idx, default=NO_VALUE):
    """These positions of what stands at `key`."""
    if default is not NO_VALUE and key not in self:
        return default
    return self._get(key)[idx]


def get_item_shape(self, key):
    """The shape of the tensor, or the batch size of the node, at `key`."""
    entry = self._get(key)
    return entry.shape if isinstance(entry, (torch.Tensor, TensorDict)) else torch.Size(())


def entry_class(self, key):
    """The class of what stands at `key`."""
    return type(self._get(key))


def set_non_tensor(self, key, value):
    """Puts a plain value at `key`; a list too stays one value."""
    if isinstance(value, torch.Tensor) or isinstance(value, collections.abc.Mapping):
        raise TypeError(f"a {type(value).__name__} is no plain value")
    if type(value) is list:
        ops.set_plain(self, key, value)
    else:
        self._set(key, value)
    return self


def is_non_tensor(self, key):
    """Whether a plain value stands at `key`."""
    return not isinstance(self._get(key), (torch.Tensor, TensorDict, type(None)))


def get_non_tensor(self, key, default=NO_VALUE):
    """The plain value at `key`."""
    if default is not NO_VALUE and key not in self:
        return default
    return self._get(key)


def non_tensor_items(self, include_nested=False):
    """Keys and values of the plain values."""
    return [
        (key, value)
        for key, value in ops.items(self, include_nested, True)
        if not isinstance(value, (torch.Tensor, type(None)))
    ]


def filter_non_tensor_data(self):
    """A tree without the plain values."""
    return ops.exclude(self, tuple(key for key, _ in non_tensor_items(self, True)))


def filter_empty_(self):
    """Takes away all nodes without leaves."""
    for key, value in ops.items(self, False, False):
        if isinstance(value, TensorDict):
            if ops.is_empty(value):
                ops.pop(self, key)
            else:
                filter_empty_(value)
    return self


def create_nested(self, key):
    """Puts an empty node at `key`, of this batch size and with these names."""
    parts = key if isinstance(key, tuple) else (key,)
    self._set(parts, TensorDict(batch_size=self.batch_size))
    return self


def replace(self, *args, **kwargs):
    """A tree of new nodes and the same tensors, with these entries in place of others or beside them."""
    if len(args) > 1:
        raise TypeError(f"replace takes one tree, not {len(args)}")
    result = ops.clone(self, False)
    for source in (*args, kwargs):
        for key, value in source.items():
            result._set(key, value)
    return result


def rename_keys(self, mapping, *, strict=True):
    """A tree of new nodes and the same tensors under new keys: a mapping of old ones to new ones.

    Nodes that this leaves empty are dropped. ValueError if it would lose something: a new key that two get, or that is
    taken by what keeps its own.
    """
    pairs = _renamings(self, mapping, strict)
    result = ops.clone(self, False)
    values = [ops.pop(result, old) for old, _ in pairs]
    for old, _ in pairs:
        for size in range(len(old) - 1, 0, -1):
            if old[:size] in result and not ops.keys(result._get(old[:size]), False, False):
                result.erase(old[:size])
    for old, new in pairs:
        _refuse_taken(result, old, new)
    for (_, new), value in zip(pairs, values):
        result._set(new, value)
    return result


def _renamings(tree, mapping, strict):
    """Pairs of old and new paths, none of which stands above another of its kind."""
    pairs = []
    for old, new in mapping.items():
        old, new = (key if isinstance(key, tuple) else (key,) for key in (old, new))
        if old in tree:
            pairs.append((old, new))
        elif strict:
            raise KeyError(f"{_shown(old)} is not in the tree")
    for place, (old, new) in enumerate(pairs):
        for other_old, other_new in pairs[:place]:
            if _one_above(old, other_old):
                raise ValueError(f"rename_keys: {_shown(other_old)} and {_shown(old)} stand one below the other")
            if _one_above(new, other_new):
                what = "both become" if new == other_new else f"would become {_shown(other_new)} and"
                raise ValueError(
                    f"rename_keys: {_shown(other_old)} and {_shown(old)} {what} {_shown(new)}"
                )
    return pairs


def _one_above(a, b):
    size = min(len(a), len(b))
    return a[:size] == b[:size]


def _refuse_taken(tree, old, new):
    """Refuses a new path where something stands that is not renamed, or a leaf above it."""
    for size in range(1, len(new) + 1):
        above = new[:size]
        if above not in tree:
            return
        if size == len(new) or not isinstance(tree._get(above), TensorDict):
            raise ValueError(
                f"rename_keys: {_shown(old)} cannot become {_shown(new)}: {_shown(above)} is in the tree"
            )


def _shown(path):
    return repr(path[0] if len(path) == 1 else path)


def separates(self, *keys, default=NO_VALUE, strict=True, filter_empty=True):
    """Takes these entries away and returns a tree of them. A missing one gets `default`."""
    result = ops.select(self, keys, strict and default is NO_VALUE)
    for key in keys:
        if key in self:
            ops.pop(self, key)
        elif default is not NO_VALUE:
            result._set(key, default)
    return filter_empty_(result) if filter_empty else result


def split_keys(self, *key_sets, inplace=False, default=NO_VALUE, strict=True):
    """One tree for each set of keys, and one of the rest."""
    rest = self if inplace else ops.clone(self, False)
    parts = tuple(separates(rest, *keys, default=default, strict=strict) for keys in key_sets)
    return *parts, filter_empty_(rest)


def cat_tensors(self, *keys, out_key, dim=0, keep_entries=False):
    """Puts the tensors at `keys`, one behind the other along `dim`, at `out_key` in their place."""
    return _combined(self, keys, out_key, torch.cat, dim, keep_entries)


def stack_tensors(self, *keys, out_key, dim=0, keep_entries=False):
    """Puts the tensors at `keys`, along a new dimension, at `out_key` in their place."""
    return _combined(self, keys, out_key, torch.stack, dim, keep_entries)


def _combined(tree, keys, out_key, combine, dim, keep_entries):
    result = combine([tree._get(key) for key in keys], dim)
    tree._set(out_key, result)  # refuses, before anything is gone, what does not have the batch size
    if not keep_entries:
        for key in frozenset(keys) - {out_key}:
            tree.erase(key)
    return tree


def record_stream(self, stream):
    """Tensor.record_stream of every tensor."""
    for leaf in tensors_of(self):
        leaf.record_stream(stream)


def update_at_(self, input_dict_or_td, idx, clone=False, *, keys_to_update=None, cast=False):
    """Copies a tree into these positions of the tensors."""
    source = as_tree(input_dict_or_td, TensorDict(batch_size=ops.index(self, idx).batch_size))
    if keys_to_update is not None:
        source = ops.select(source, keys.paths(keys_to_update), False)
    target = ops.select(self, tuple(ops.keys(source, True, True)), True)
    ops.set_index(target, idx, source, cast)
    return self


def copy_at_(self, tensordict, idx):
    """update_at_ under torch's name."""
    return update_at_(self, tensordict, idx)


def sorted_keys(self):
    """The keys of the first level, in canonical order."""
    return ops.keys(self, False, False)


def depth(self):
    """How many levels of nodes there are below this one."""
    nodes = [value for value in ops.values(self, False, False) if isinstance(value, TensorDict)]
    return 1 + max(map(depth, nodes)) if nodes else 0


METHODS = {
    function.__name__: function
    for function in (
        clear, popitem, fill_, get_at, get_item_shape, entry_class, set_non_tensor, is_non_tensor, get_non_tensor,
        non_tensor_items, filter_non_tensor_data, filter_empty_, create_nested, replace, rename_keys, separates,
        split_keys, update_at_, copy_at_, cat_tensors, stack_tensors, record_stream,
    )
}  # fmt: skip
METHODS |= {"sorted_keys": property(sorted_keys), "depth": property(depth)}
