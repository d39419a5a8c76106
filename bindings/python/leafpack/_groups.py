"""Groups: those of torch.distributed, taken as they are, and leafpack's own."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref

import torch.distributed as dist

from leafpack import _C
from leafpack._C import Group

# The group around each process group of torch.distributed that was used here, and all groups that
# are alive. A process group keeps its leafpack group as long as it lives.
_around: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_alive: weakref.WeakSet = weakref.WeakSet()
_lock = threading.Lock()

# How long a program that exits waits for calls in flight, seconds.
_EXIT_TIMEOUT = 5.0


def resolve(group) -> Group:
    """Returns the leafpack group for the `group` argument of a collective."""
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "there is no default group: call torch.distributed.init_process_group, or give a group"
            )
        group = dist.group.WORLD
    elif isinstance(group, Group):
        return group
    found = _around.get(group) if isinstance(group, dist.ProcessGroup) else None
    return found if found is not None else _make(group)


def _make(group) -> Group:
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        rank = dist.get_rank() if dist.is_initialized() else "?"
        raise ValueError(f"rank {rank} is not a member of the group")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            "group must be a group of torch.distributed, a leafpack.Group or None, "
            f"not {group!r}"
        )
    with _lock:
        found = _around.get(group)
        if found is None:
            try:
                ranks = dist.get_process_group_ranks(group)
            except (KeyError, ValueError):
                ranks = (
                    []
                )  # a process group that torch.distributed does not know: ranks are its own
            found = _C.group_around(group, ranks)
            _around[group] = found
            track(found)
    return found


def track(group: Group) -> Group:
    """Has `group` shut down when the program exits."""
    if not _alive:
        # Children of multiprocessing end without atexit, but run these.
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, _shut_down_all, exitpriority=0)
    _alive.add(group)
    return group


def _shut_down_all() -> None:
    deadline = time.monotonic() + _EXIT_TIMEOUT
    for group in list(_alive):
        try:
            group.shutdown(max(0.001, deadline - time.monotonic()))
        except Exception:
            # The calls in flight have failed; what the program exits with is its own affair.
            pass
    _alive.clear()


# Runs before Python is taken down, so that no thread of ours meets a Python that is gone.
atexit.register(_shut_down_all)
# Groups of the parent are not the child's: it must not say good-bye in the parent's name.
os.register_at_fork(after_in_child=_alive.clear)


def _tracked(make):
    def factory(*args, **kwargs):
        return track(make(*args, **kwargs))

    factory.__doc__ = make.__doc__
    return staticmethod(factory)


Group.from_environment = _tracked(_C.group_from_environment)
Group.from_file = _tracked(_C.group_from_file)
