"""State dicts, trees in one storage, and trees in files."""

from __future__ import annotations

import collections
import errno
import os
import pathlib
from collections.abc import Mapping

import torch

from leafpack._tree.common import TensorDict, ops, tensors_of
from leafpack._tree.interop import as_tree


def state_dict(self, destination=None, prefix="", keep_vars=False, flatten=True):
    """The leaves in an OrderedDict, under their paths joined by dots; nested dicts without `flatten`.

    They are the tensors themselves, not copies: of a consolidated tree with several dtypes torch.save refuses the dict.
    Save the tree, or its clone's state_dict.
    """
    result = collections.OrderedDict() if destination is None else destination
    source = ops.flatten_keys(self, ".") if flatten else self
    for key, value in ops.items(source, False, False):
        if isinstance(value, TensorDict):
            value = state_dict(value, keep_vars=keep_vars, flatten=False)
        elif isinstance(value, torch.Tensor) and not keep_vars:
            value = value.detach()
        result[f"{prefix}{key}"] = value
    return result


def load_state_dict(self, state_dict, strict=True, assign=False, from_flatten=None, *, cast=False):
    """Copies the leaves of a state dict, flat or nested, into this tree; with `assign` they take the places.

    At an error (a missing leaf, one too many if `strict`, another shape or dtype) nothing has changed.
    """
    if not isinstance(state_dict, (Mapping, TensorDict)) and not hasattr(state_dict, "items"):
        raise TypeError(f"load_state_dict: a {type(state_dict).__name__} is no state dict")
    paths = {}
    for key in ops.keys(self, True, True):
        paths[".".join(map(str, key)) if isinstance(key, tuple) else str(key)] = key
    state = TensorDict()
    for name, value in _flat(state_dict):
        state._set(paths.get(name, name), value)
    ops.load(self, state, strict, assign, cast)
    return self


def _flat(state, prefix=""):
    for key, value in state.items():
        if isinstance(value, (Mapping, TensorDict)):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def consolidate(self, *, alignment=64, device=None):
    """A copy in one storage, which collectives do not have to pack."""
    return ops.consolidate(self, alignment, None if device is None else torch.device(device))


def is_consolidated(self):
    """Whether all tensors are views of one storage."""
    return ops.consolidated_storage(self) is not None


def memmap(self, prefix, *, existsok=True, progress=None):
    """Writes the tree to a folder that tensordict reads too, and returns the tree that lies there, locked.

    What is at `prefix` is replaced if it is an empty folder, or one that holds such a tree and nothing more; a
    symbolic link to one stays. Anything else is kept: FileExistsError. `progress` is called with the bytes done and
    to do; False gives the work up.
    """
    ops.check_path(os.fspath(prefix))
    if not existsok and os.path.lexists(prefix):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(prefix))
    ops.save_memmap(self, os.fspath(prefix), existsok, progress)
    return _locked(ops.load_memmap(os.fspath(prefix), True))


def memmap_(self, prefix, *, existsok=True, progress=None):
    """memmap, after which the tensors of this tree are those in the files; locks it."""
    if self.is_locked:
        raise RuntimeError("the tree is locked: its tensors cannot be replaced")
    ops.update(self, memmap(self, prefix, existsok=existsok, progress=progress))
    return _locked(self)


def memmap_like(self, prefix, *, existsok=True, progress=None):
    """memmap of a tree of zeros of these dtypes and shapes."""
    return memmap(torch.zeros_like(self), prefix, existsok=existsok, progress=progress)


def is_memmap(self):
    """Whether all tensors that have elements are whole files of a folder, which writes reach; at least one must be."""
    tensors = [tensor for tensor in tensors_of(self) if tensor.numel() > 0]
    return bool(tensors) and all(ops.memmap_file(tensor) is not None for tensor in tensors)


def saved_path(self):
    """The folder that the tree lies in, as a pathlib.Path. AttributeError if not is_memmap()."""
    for key, tensor in ops.items(self, True, True):
        if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
            continue
        file = ops.memmap_file(tensor)
        if file is None:
            break
        return pathlib.Path(file).parents[len(key) - 1 if isinstance(key, tuple) else 0]
    raise AttributeError("the tree does not lie in a folder: is_memmap() is False")


def load_memmap_(self, prefix):
    """Copies the tensors in a folder that memmap wrote into those of this tree."""
    ops.update_in_place(self, ops.load_memmap(_present(prefix), False), False)
    return self


def load_memmap(prefix, *, mode="r+"):
    """The tree in a folder that memmap wrote, here or in tensordict. Mode "r" reads; "r+" writes through."""
    if mode not in ("r", "r+"):
        raise ValueError(f'mode must be "r" or "r+", not {mode!r}')
    return _locked(ops.load_memmap(_present(prefix), mode == "r+"))


def _locked(tree):
    ops.lock(tree)
    return tree


def _present(path):
    path = os.fspath(path)
    ops.check_path(path)
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return path


def save_safetensors(tree, path, *, separator=".", metadata=None, progress=None):
    """Writes all tensors of a tree to a safetensors file, under their paths joined by `separator`.

    The new file takes the place of an old one when it is whole; what is no regular file is kept (FileExistsError).
    What the format cannot hold is a ValueError that
    names it. `progress` is called with the bytes done and to do; False gives the work up.
    """
    tree = as_tree(tree, TensorDict(), "tree")
    ops.save_safetensors(tree, os.fspath(path), separator, metadata or {}, progress)


def load_safetensors(path, *, separator=".", memory_map=True, progress=None):
    """The tree in a safetensors file, whose names are split at `separator` (with "" they are kept).

    Leaves are views of a private memory map, read when they are touched, unless `memory_map` is False. A file that
    is not whole and valid is a ValueError that names file, tensor and offset.
    """
    return ops.load_safetensors(_present(path), separator, memory_map, progress)


METHODS = {
    function.__name__: function
    for function in (
        state_dict, load_state_dict, consolidate, is_consolidated, memmap, memmap_, memmap_like, load_memmap_, is_memmap,
    )
}  # fmt: skip
METHODS |= {
    "saved_path": property(saved_path),
    "save": memmap,
    "dumps": memmap,
    "load_": load_memmap_,
    "load_memmap": staticmethod(load_memmap),
    "load": staticmethod(load_memmap),
}
