"""What stands where in a tree: access by key and index, updates, selections."""

from __future__ import annotations

import torch

from leafpack._tree.common import MISSING, NO_VALUE, TensorDict, into, is_key, number, ops
from leafpack._tree.interop import as_tree


def __getitem__(self, key):
    return self._get(key) if is_key(key) else ops.index(self, key)


def __setitem__(self, key, value):
    if is_key(key):
        self._set(key, value)
        return
    value = number(value)
    if isinstance(value, (bool, int, float, complex)):
        ops.fill_index(self, key, value)
    elif isinstance(value, torch.Tensor):
        if value.dim() > 0:
            raise ValueError(
                "an index takes a tree or a number: a tensor does not say which leaf it is for"
            )
        ops.fill_index(self, key, value.item())
    else:
        part_size = () if isinstance(value, TensorDict) else ops.index(self, key).batch_size
        tree = value if isinstance(value, TensorDict) else _with_batch_size(value, part_size)
        ops.set_index(self, key, tree, False)


def _with_batch_size(value, batch_size):
    return as_tree(value, TensorDict(batch_size=batch_size))


def __delitem__(self, key):
    self.erase(key)


def set(self, key, item, inplace=False, *, non_blocking=False):
    """Puts a tensor, a tree or a plain value at `key`. With `inplace`, copies into a tensor that is there."""
    if inplace and isinstance(item, torch.Tensor) and key in self:
        return set_(self, key, item)
    self._set(key, item)
    return self


def set_(self, key, item, *, non_blocking=False, cast=False):
    """Copies `item` into the tensor at `key`, also in a locked tree. Another dtype is an error unless `cast`."""
    ops.set_in_place(self, key, item, cast)
    return self


def set_at_(self, key, value, index, *, non_blocking=False, cast=False):
    """Copies `value` into these positions of the tensor at `key`."""
    if not isinstance(value, torch.Tensor):
        value = torch.as_tensor(value, dtype=self._get(key).dtype)
    ops.set_leaf_index(self, key, index, value, cast)
    return self


def get(self, key, default=MISSING):
    """What stands at `key`, or `default`; without one None, but a KeyError if the path leads through a leaf."""
    if key in self:
        return self._get(key)
    if default is not MISSING:
        return default
    if isinstance(key, tuple):
        for end in range(1, len(key)):
            if key[:end] in self and not isinstance(self._get(key[:end]), TensorDict):
                return self._get(key)  # raises, and says where
    return None


def setdefault(self, key, default, inplace=False):
    """What stands at `key`; `default`, which is put there, if nothing does."""
    if key not in self:
        set(self, key, default, inplace)
    return self._get(key)


def pop(self, key, default=MISSING):
    """Takes away what stands at `key` and returns it. KeyError without a default if nothing does."""
    if default is not MISSING and key not in self:
        return default
    return ops.pop(self, key)


def del_(self, key):
    """Takes away what stands at `key`."""
    self.erase(key)
    return self


def rename_key_(self, old_key, new_key, safe=False):
    """Moves what stands at `old_key` to `new_key`. With `safe`, ValueError if something stands there."""
    ops.rename_key(self, old_key, new_key, safe)
    return self


def keys(self, include_nested=False, leaves_only=False, is_leaf=None, *, sort=False):
    """A list of the keys, in canonical order (`sort` changes nothing); paths of nested ones are tuples.

    Nodes for whose class `is_leaf` is true are listed as leaves; so is what stands below them.
    """
    if is_leaf is not None:
        return [key for key, _ in _items(self, include_nested, leaves_only, is_leaf)]
    return ops.keys(self, include_nested, leaves_only)


def values(self, include_nested=False, leaves_only=False, is_leaf=None, *, sort=False):
    """A list of what stands at the keys."""
    if is_leaf is not None:
        return [value for _, value in _items(self, include_nested, leaves_only, is_leaf)]
    return ops.values(self, include_nested, leaves_only)


def items(self, include_nested=False, leaves_only=False, is_leaf=None, *, sort=False):
    """A list of keys and what stands there."""
    if is_leaf is not None:
        return _items(self, include_nested, leaves_only, is_leaf)
    return ops.items(self, include_nested, leaves_only)


def _items(tree, include_nested, leaves_only, is_leaf, below_leaves=True, prefix=()):
    result = []
    for key, value in ops.items(tree, False, False):
        path = (*prefix, key)
        leaf = not isinstance(value, TensorDict) or is_leaf(type(value))
        if leaf or not leaves_only:
            result.append((path if prefix else key, value))
        if include_nested and isinstance(value, TensorDict) and (below_leaves or not leaf):
            result += _items(value, True, leaves_only, is_leaf, below_leaves, path)
    return result


def update(
    self, input_dict_or_td=None, clone=False, inplace=False, *, non_blocking=False, keys_to_update=None,
    is_leaf=None, update_batch_size=False, **entries,
):  # fmt: skip
    """Sets all of a tree or a dict in this tree; where both have a node, goes on below.

    Nodes for whose class `is_leaf` is true are put in place of what is there. With `update_batch_size` the tree takes
    the batch size of the other one, whose leaves must be all that stays.
    """
    if entries:
        update(self, entries, clone, inplace, keys_to_update=keys_to_update, is_leaf=is_leaf)
    if input_dict_or_td is None:
        return self
    if update_batch_size and isinstance(input_dict_or_td, TensorDict):
        merged = ops.clone(self, False)
        ops.set_batch_size(merged, ())
        ops.update(merged, ops.clone(input_dict_or_td, clone))
        ops.set_batch_size(merged, input_dict_or_td.batch_size)
        self.clear()
        ops.set_batch_size(self, input_dict_or_td.batch_size)
        ops.update(self, merged)
        return self
    source = as_tree(input_dict_or_td, self, "input_dict_or_td")
    if keys_to_update is not None:
        source = ops.select(source, paths(keys_to_update), False)
    if inplace:
        return _update_where_there(self, source)
    if clone:
        source = ops.clone(source, True)
    if source.is_same(self):
        return self
    if is_leaf is not None:
        for key, value in _items(source, True, True, is_leaf, False):
            self._set(key, value)
        return self
    ops.update(self, source)
    return self


def _update_where_there(self, source):
    for key, value in ops.items(source, True, True):
        if isinstance(value, torch.Tensor) and isinstance(get(self, key), torch.Tensor):
            ops.set_in_place(self, key, value, False)
        else:
            self._set(key, value)
    return self


def update_(
    self, input_dict_or_td, clone=False, *, non_blocking=False, keys_to_update=None, cast=False
):
    """Copies the tensors of a tree or a dict into those of this tree; at an error none is written."""
    source = as_tree(input_dict_or_td, self, "input_dict_or_td")
    if keys_to_update is not None:
        source = ops.select(source, paths(keys_to_update), False)
    ops.update_in_place(self, source, cast)
    return self


def copy_(self, tensordict, non_blocking=False):
    """update_ under torch's name."""
    return update_(self, tensordict)


def paths(keys_given):
    if isinstance(keys_given, str) or is_key(keys_given):
        return (keys_given,)
    return tuple(keys_given)


def select(self, *keys, inplace=False, strict=True, as_tensordict=False):
    """A tree of these leaves and nodes only. With `strict`, KeyError if one is missing."""
    return into(self, ops.select(self, keys, strict), inplace)


def exclude(self, *keys, inplace=False):
    """A tree of all but these leaves and nodes."""
    return into(self, ops.exclude(self, keys), inplace)


def flatten_keys(self, separator=".", inplace=False, is_leaf=None):
    """A tree of one level; the parts of each path are joined. ValueError if two become one.

    Nodes for whose class `is_leaf` is true stay whole.
    """
    if is_leaf is None:
        return into(self, ops.flatten_keys(self, separator), inplace)
    result = TensorDict(batch_size=self.batch_size)
    for key, value in _items(self, True, True, is_leaf, False):
        name = separator.join(map(str, key)) if isinstance(key, tuple) else key
        if name in result:
            raise ValueError(f"flatten_keys: two paths become {name!r}")
        result._set(name, value)
    return into(self, result, inplace)


def unflatten_keys(self, separator=".", inplace=False):
    """The other way round: names are split at `separator`."""
    return into(self, ops.unflatten_keys(self, separator), inplace)


def empty(self, recurse=False, *, batch_size=None, device=NO_VALUE, names=NO_VALUE):
    """A tree without leaves, of this batch size, device and names unless told otherwise; with `recurse` with the nodes."""
    size = self.batch_size if batch_size is None else batch_size
    if recurse:
        result = ops.apply(self, lambda leaf: None, (), "none", batch_size, False)
    else:
        result = TensorDict(batch_size=size)
    device = self.device if device is NO_VALUE else device
    if device is not None:
        result = ops.to(result, torch.device(device), None, False)
    if names is NO_VALUE:
        names = self.names if batch_size is None else None
    if names and any(name is not None for name in names):
        ops.set_names(result, names)
    return result


METHODS = {
    function.__name__: function
    for function in (
        __getitem__, __setitem__, __delitem__, set, set_, set_at_, get, setdefault, pop, del_, rename_key_, keys,
        values, items, update, update_, copy_, select, exclude, flatten_keys, unflatten_keys, empty,
    )
}  # fmt: skip
