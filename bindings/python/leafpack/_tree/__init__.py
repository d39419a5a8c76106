"""The methods of leafpack.TensorDict, under the names and signatures of tensordict.TensorDict.

The work is done by leafpack._C.ops; here stand the arguments, by theme. docs/tensordict.md says where results differ
from tensordict's on purpose.
"""

from __future__ import annotations

import inspect

from leafpack._tree import (
    arithmetic,
    compare,
    construct,
    contexts,
    entries,
    files,
    interop,
    keys,
    lazy,
    leaves,
    processes,
    rearrange,
    reductions,
    shapes,
    torch_functions,
)
from leafpack._tree.common import TensorDict

_THEMES = (
    keys, entries, leaves, shapes, rearrange, compare, arithmetic, reductions, files, interop, construct,
    contexts, processes, lazy, torch_functions,
)  # fmt: skip


def attach() -> None:
    """Gives leafpack.TensorDict its methods."""
    TensorDict._from_tree = staticmethod(TensorDict.from_tensordict)
    TensorDict._clear = TensorDict.clear
    for theme in _THEMES:
        for name, method in theme.METHODS.items():
            if inspect.isfunction(method):
                method.__qualname__ = f"TensorDict.{name}"
            setattr(TensorDict, name, method)
    lazy.attach()
