"""The methods of leafpack.TensorDict, under the names and signatures of tensordict.TensorDict.

The work is done by leafpack._C.ops; here stand the arguments, by theme. docs/tensordict.md says where results differ
from tensordict's on purpose.
"""

from __future__ import annotations

import inspect

from leafpack._tree import (
    arithmetic,
    compare,
    files,
    interop,
    keys,
    leaves,
    shapes,
    torch_functions,
)
from leafpack._tree.common import TensorDict

_THEMES = (keys, leaves, shapes, compare, arithmetic, files, interop, torch_functions)


def attach() -> None:
    """Gives leafpack.TensorDict its methods."""
    TensorDict._from_tree = staticmethod(TensorDict.from_tensordict)
    for theme in _THEMES:
        for name, method in theme.METHODS.items():
            if inspect.isfunction(method):
                method.__qualname__ = f"TensorDict.{name}"
            setattr(TensorDict, name, method)
