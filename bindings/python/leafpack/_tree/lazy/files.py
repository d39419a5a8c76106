"""LazyStacks in folders, as tensordict keeps them: a folder for each tree, and meta.json, which names the dimension."""

from __future__ import annotations

import errno
import json
import os
import shutil

from leafpack._errors import UnsupportedError
from leafpack._tree import files
from leafpack._tree.common import TensorDict, ops
from leafpack._tree.lazy.stack import LazyStack

_META = "meta.json"
_VERSION = 1
_KIND = "tensordict:LazyStackedTensorDict"
_TYPE = "<class 'tensordict._lazy.LazyStackedTensorDict'>"
_MAX_META = 1 << 16
_MAX_DEPTH = 64


def memmap(self, prefix, *, existsok=True, progress=None):
    """Writes the stack to a folder that tensordict reads too, and returns the stack that lies there, locked.

    The folder appears whole, or the old one stays; what is replaced is as of TensorDict.memmap. `progress` is called
    for each tree with the bytes done and to do.
    """
    prefix = os.fspath(prefix)
    ops.check_path(prefix)
    if not existsok and os.path.lexists(prefix):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), prefix)
    target = ops.memmap_target(prefix)  # what the link there leads to
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    work, lock = ops.make_temporary_folder(target)
    try:
        new = os.path.join(work, "new")
        _write(self, new, progress)
        ops.put_memmap(new, target)  # what was there goes with `work`
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
    return load_stack(prefix, "r+")


def _write(stack, folder, progress):
    os.mkdir(folder)
    for place, tree in enumerate(stack.tensordicts):
        part = os.path.join(folder, str(place))
        if isinstance(tree, LazyStack):
            _write(tree, part, progress)
        else:
            ops.save_memmap(tree, part, True, progress)
    meta = {
        "_type": _TYPE,
        "_format_version": _VERSION,
        "_class": _KIND,
        "stack_dim": stack.stack_dim,
        "stack_dim_name": stack.stack_dim_name,
    }
    with open(os.path.join(folder, _META), "w", encoding="utf-8") as file:
        json.dump(meta, file)
        file.flush()
        os.fsync(file.fileno())


def is_stack(folder):
    """Whether the folder says of itself that it holds a stack."""
    meta = _meta(folder)
    return isinstance(meta, dict) and _TYPE in (meta.get("_type"), meta.get("type"))


def _meta(folder):
    path = os.path.join(folder, _META)
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_META + 1)
        # The file of a tree may be long, that of a stack is not.
        return json.loads(text) if len(text) <= _MAX_META else None
    except (OSError, ValueError, RecursionError):
        return None  # what is wrong with it is told by who reads trees


def load_stack(folder, mode, depth=0):
    """The stack in a folder. ValueError, with the path, for one that is not whole."""
    meta = _meta(folder)
    if depth > _MAX_DEPTH:
        raise ValueError(f"{folder}: stacks nest deeper than {_MAX_DEPTH}")
    version = meta.get("_format_version", 0)
    if type(version) is not int or not 0 <= version <= _VERSION:
        path = os.path.join(folder, _META)
        raise UnsupportedError(
            f"file {path}: _format_version {json.dumps(version)} cannot be read; versions up to {_VERSION} can"
        )
    dim, name = meta.get("stack_dim"), meta.get("stack_dim_name")
    if type(dim) is not int or not (name is None or isinstance(name, str)):
        raise ValueError(f"{os.path.join(folder, _META)}: stack_dim {dim!r}, stack_dim_name {name!r}")
    found = {entry.name for entry in os.scandir(folder) if entry.is_dir()}
    parts = [os.path.join(folder, str(place)) for place in range(len(found))]
    if not parts or found != {str(place) for place in range(len(found))}:
        raise ValueError(f"{folder}: a stack has the folders 0, 1, 2, ..., not {sorted(found)}")
    trees = [
        load_stack(part, mode, depth + 1) if is_stack(part) else files.load_memmap(part, mode=mode)
        for part in parts
    ]
    try:
        return LazyStack(*trees, stack_dim=dim, stack_dim_name=name)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def load_memmap(prefix, *, mode="r+"):
    """The tree or the stack in a folder that memmap wrote, here or in tensordict.

    Mode "r" reads; "r+" writes through.
    """
    if mode in ("r", "r+") and is_stack(os.fspath(prefix)):
        return load_stack(os.fspath(prefix), mode)
    return files.load_memmap(prefix, mode=mode)


METHODS = {
    "memmap": memmap,
    "save": memmap,
    "load_memmap": staticmethod(load_memmap),
    "load": staticmethod(load_memmap),
}


def attach() -> None:
    """Lets leafpack.TensorDict.load_memmap read stacks too."""
    TensorDict.load_memmap = TensorDict.load = staticmethod(load_memmap)
