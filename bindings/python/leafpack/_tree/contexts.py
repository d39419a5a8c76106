"""Trees in `with`: with tree.unlock_(): ..., with tree.to_module(module): ..."""

from __future__ import annotations

import threading
import weakref

_of_thread = threading.local()


def remember(tree, undo) -> None:
    """Lets `with` take `tree` now, and call undo(tree) when it is left. `undo` must not keep the tree alive."""
    _of_thread.last = (weakref.ref(tree), undo)


def __enter__(self):
    tree, undo = getattr(_of_thread, "last", (None, None))
    if tree is None or tree() is not self:
        raise RuntimeError("with takes a tree right from lock_(), unlock_() or to_module(module)")
    del _of_thread.last
    _of_thread.__dict__.setdefault("entered", []).append((self, undo))
    return self


def __exit__(self, *of_exception):
    tree, undo = _of_thread.entered[-1]
    if tree is not self:
        raise RuntimeError("the trees of nested withs are left in another order than they were entered")
    _of_thread.entered.pop()
    undo(self)


METHODS = {"__enter__": __enter__, "__exit__": __exit__}
