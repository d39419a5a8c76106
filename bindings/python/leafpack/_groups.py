"""Groups: those of torch.distributed, taken as they are, and leafpack's own."""

from __future__ import annotations

import atexit
import operator
import os
import sys
import threading
import weakref

import torch.distributed as dist

from leafpack import _C
from leafpack._C import Group

# The group around each process group of torch.distributed that was used here. A process group keeps its
# leafpack group as long as it lives.
_around: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_tracking = False  # this process shuts its groups down at its end
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
    elif isinstance(group, NonMember):
        raise group.error()
    found = _around.get(group) if isinstance(group, dist.ProcessGroup) else None
    return found if found is not None else _make(group)


class NonMember:
    """What a rank gets in place of a group that it is no member of.

    False in a condition; a collective on it raises ValueError.

    Attributes:
        ranks: the ranks of the job that are members; empty where a split gave this rank no group.
    """

    ranks: tuple[int, ...] = ()

    def __init__(self, rank: int, ranks) -> None:
        self.ranks = tuple(sorted(ranks))
        self._rank = rank

    def error(self) -> ValueError:
        """The error of a collective of this rank on the group."""
        of = f" of ranks {list(self.ranks)}" if self.ranks else ""
        return ValueError(f"rank {self._rank} is not a member of the group{of}")

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name):
        if name.startswith("_") or not hasattr(Group, name):
            raise AttributeError(f"'NonMember' object has no attribute {name!r}")
        raise self.error()

    def __repr__(self) -> str:
        return f"leafpack.NonMember(ranks={list(self.ranks)})"


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


def _shut_down_all() -> None:
    # Also those that only a call in flight still holds: it would free its tensors in a Python that is going
    # down. What the calls have failed with is nobody's any more.
    _C.shut_down_groups(_EXIT_TIMEOUT)


def _have_shut_down_in_children() -> None:
    # Children of multiprocessing end without atexit, but run these.
    util = sys.modules.get("multiprocessing.util")
    process = sys.modules.get("multiprocessing.process")
    if util is not None and process is not None and process.parent_process() is not None:
        util.Finalize(None, _shut_down_all, exitpriority=0)


def track(group: Group) -> Group:
    """Has `group` shut down when the program exits."""
    global _tracking
    if not _tracking:
        _have_shut_down_in_children()
        _tracking = True
    return group


def _track_anew() -> None:
    global _tracking
    _tracking = False


# Runs before Python is taken down, so that no thread of ours meets a Python that is gone.
atexit.register(_shut_down_all)
os.register_at_fork(after_in_child=_track_anew)


def _tracked(make):
    def factory(*args, **kwargs):
        return track(make(*args, **kwargs))

    factory.__doc__ = make.__doc__
    return staticmethod(factory)


Group.from_environment = _tracked(_C.group_from_environment)
Group.from_file = _tracked(_C.group_from_file)
Group.from_url = _tracked(_C.group_from_url)
Group.from_store = _tracked(_C.group_from_store)


def _around_group(group=None) -> Group:
    """The leafpack group around a group of torch.distributed, the default one if None."""
    return resolve(group)


def _new_group(self, ranks, *, name="", backend=None, timeout=None, interface=None):
    """A group of some of this group's ranks, a list of ranks of the job.

    Called by its members alone, or by all ranks of this group; nobody is talked to. Members make groups
    of equal lists (and names) in one order. Group rank i is the i-th smallest of `ranks`.

    Args:
        ranks: ranks of the job, all of them in this group.
        name: keeps groups of equal lists apart that are made in other orders on other ranks.
        backend, timeout, interface: of the new group; None is this group's.

    Returns:
        A Group; on a rank that is no member a NonMember, on which every call raises ValueError.
    """
    ranks = [operator.index(rank) for rank in ranks]
    group = _C.new_group(self, ranks, name, backend, timeout, interface)
    return NonMember(self.global_rank, ranks) if group is None else track(group)


def _split(self, color, key=0, *, backend=None, timeout=None, interface=None):
    """Splits this group: a collective of all its ranks. Ranks of equal colour form a group.

    Args:
        color: an int, or None to take part without getting a group.
        key: orders the ranks of a group; equal keys keep the order of this group.
        backend, timeout, interface: of the new group; None is this group's.

    Returns:
        A Group; with color=None a NonMember.
    """
    group = _C.split_group(self, color, key, backend, timeout, interface)
    return NonMember(self.global_rank, ()) if group is None else track(group)


for _name, _function in (("new_group", _new_group), ("split", _split)):
    _function.__name__ = _name
    _function.__qualname__ = f"Group.{_name}"
    setattr(Group, _name, _function)
Group.around = staticmethod(_around_group)
