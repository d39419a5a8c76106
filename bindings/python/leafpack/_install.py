"""install(): tensordict's own collective methods run on leafpack."""

from __future__ import annotations

import functools
import threading

from leafpack import _methods

_lock = threading.RLock()
_depth = 0
_saved: dict[str, object] = {}
_ABSENT = object()


class Installed:
    """What install() returns: a context manager that undoes it at its end."""

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *error) -> None:
        uninstall()


def install() -> Installed:
    """Lets tensordict's all_reduce, reduce, broadcast, all_gather, scatter, gather_and_stack, send, recv, isend,
    irecv, init_remote and from_remote_init run on leafpack, with their signatures and return values.

    Every rank must install it, or none: the two ways of sending do not understand each other. It may be
    called again; uninstall() must be called as often. As a context manager it is undone at its end:

        with leafpack.install():
            td.all_reduce()
    """
    try:
        from tensordict import TensorDictBase
    except ImportError as error:
        raise ImportError(f"leafpack.install needs tensordict: {error}") from error
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            for name, function in _methods.METHODS.items():
                _patch(TensorDictBase, name, _beside_pipes(name, function))
            for name, function in _methods.CLASS_METHODS.items():
                _patch(TensorDictBase, name, classmethod(function))
    return Installed()


def uninstall() -> None:
    """Gives tensordict its own methods back. Without install() it does nothing."""
    global _depth
    with _lock:
        if _depth == 0:
            return
        _depth -= 1
        if _depth > 0:
            return
        from tensordict import TensorDictBase

        for name, saved in _saved.items():
            if saved is _ABSENT:
                delattr(TensorDictBase, name)
            else:
                setattr(TensorDictBase, name, saved)
        _saved.clear()


def _patch(cls, name, function) -> None:
    _saved[name] = vars(cls).get(name, _ABSENT)
    setattr(cls, name, function)


def _beside_pipes(name, function):
    """send and recv also take a UCXX pipe, which is no matter of leafpack."""
    if name not in ("send", "recv"):
        return function
    from tensordict import TensorDictBase

    own = getattr(TensorDictBase, name)

    @functools.wraps(function)
    def method(self, peer=None, **arguments):
        if peer is not None and hasattr(peer, "asend" if name == "send" else "arecv"):
            return own(self, peer, **arguments)
        for keyword in ("dst", "src"):
            if keyword in arguments:
                peer = arguments.pop(keyword)
        return function(self, peer, **arguments)

    return method
