"""The collectives as methods with the signatures and return values of tensordict 0.15.3.

leafpack.TensorDict has them; install() gives them to tensordict's own classes. Ranks without `group_` in their
name are ranks of the job, on every group.
"""

from __future__ import annotations

import sys

import torch

from leafpack import _C, _collectives
from leafpack._tree.lazy import LazyStack


def _to(tree, device):
    return tree if device is None else tree.to(device)


def _find_class(name: str):
    """The class of this dotted name among the modules that are imported already, or None."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:]:
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
    return None


def _as_class(tree, name: str | None):
    """The tensorclass that tensordict took `tree` out of, made again around it."""
    cls = None if name is None else _find_class(name)
    return tree if cls is None else cls.from_tensordict(tree)


def all_reduce(self, op=None, *, group=None, async_op=False, bucket_bytes=None):
    """Reduces every leaf over all ranks of a group, in place. See leafpack.all_reduce.

    Returns None, or a list of works if `async_op`. Without `bucket_bytes` leafpack chooses the messages.
    """
    if bucket_bytes is None:
        bucket_bytes = "auto"
    work = _collectives.all_reduce(
        self, op, group=group, async_op=async_op, bucket_bytes=bucket_bytes
    )
    return list(work) if async_op else None


def reduce(
    self, dst, op=None, async_op=False, return_premature=False, group=None, *, bucket_bytes=None
):
    """Reduces every leaf over all ranks, into the leaves of rank `dst`; the others do not change.

    Returns a list of works with `async_op` and `return_premature`, else None.
    """
    if bucket_bytes is None:
        bucket_bytes = "auto"
    work = _collectives.reduce(
        self, dst, op, group=group, async_op=async_op, bucket_bytes=bucket_bytes
    )
    if not async_op:
        return None
    if return_premature:
        return list(work)
    work.wait()
    return None


def broadcast(self, src, *, group=None, device=None, _tensorclass_type=None):
    """Sends the tree of rank `src` to every rank. The others' own trees are not looked at.

    Returns a new tree; on `src` a copy of its own, or itself if it is consolidated.
    """
    if _rank_of(group) != src:
        return _to(_collectives.broadcast(None, src, group=group), device)
    tree = _as_class(self, _tensorclass_type)
    _collectives.broadcast(tree, src, group=group)
    return _copy(tree)


def all_gather(self, *, group=None):
    """Returns the list of the trees of all ranks, by group rank."""
    return _collectives.all_gather(self, group=group)


def scatter(self, src, tensordicts=None, *, group=None, device=None):
    """Sends tensordicts[i] of rank `src` to group rank i and returns what this rank gets, as a new tree."""
    trees = tensordicts if _rank_of(group) == src else None
    return _to(_collectives.scatter(None, trees, src, group=group), device)


def gather_and_stack(self, dst, group=None):
    """Writes the trees of the other ranks into the rows of the tree of rank `dst`.

    Its leaves have one row for each other rank, in their order. Returns `self` on `dst`, None elsewhere.
    """
    if _rank_of(group) != dst:
        _collectives.gather(self, dst, group=group)
        return None
    trees = _collectives.gather({}, dst, group=group)
    own = _collectives.resolve(group).rank
    others = trees[:own] + trees[own + 1 :]
    if others and not _copy_rows(self, others):
        self.update(torch.stack(others, 0), inplace=True)
    return self


def send(
    self,
    dst=None,
    *,
    group=None,
    group_dst=None,
    init_tag=0,
    pseudo_rand=False,
    consolidated=False,
):
    """Sends the tree to another rank, as one transfer; returns when it has it."""
    _one_peer(dst, group_dst, group, "dst")
    tag = 0 if consolidated else init_tag
    _collectives.send(self, dst, group_dst=group_dst, tag=tag, group=group)


def recv(
    self,
    src=None,
    *,
    group=None,
    group_src=None,
    init_tag=0,
    pseudo_rand=False,
    consolidated=False,
):
    """Receives what another rank sends into the leaves of the tree.

    Returns the tag that its last leaf would have had as a message of its own, None if `consolidated`.
    """
    _one_peer(src, group_src, group, "src")
    tag = 0 if consolidated else init_tag
    _collectives.recv(self, src, group_src=group_src, tag=tag, group=group)
    return None if consolidated else _last_tag(self, init_tag, pseudo_rand)


def isend(
    self,
    dst=None,
    *,
    group=None,
    group_dst=None,
    init_tag=0,
    pseudo_rand=False,
    return_early=False,
    consolidated=False,
):
    """Starts send. Returns a list with its work if `return_early`, else as recv once it is over."""
    _one_peer(dst, group_dst, group, "dst")
    tag = 0 if consolidated else init_tag
    work = _collectives.isend(self, dst, group_dst=group_dst, tag=tag, group=group)
    if return_early:
        return [work]
    work.wait()
    return None if consolidated else _last_tag(self, init_tag, pseudo_rand)


def irecv(
    self,
    src=None,
    *,
    group=None,
    group_src=None,
    return_premature=False,
    init_tag=0,
    pseudo_rand=False,
    consolidated=False,
):
    """Starts recv. Returns a list with its work if `return_premature`, else None once it is over."""
    _one_peer(src, group_src, group, "src")
    tag = 0 if consolidated else init_tag
    work = _collectives.irecv(self, src, group_src=group_src, tag=tag, group=group)
    if return_premature:
        return [work]
    work.wait()
    return None


def init_remote(
    self, dst=None, group=None, device=None, use_broadcast=False, _tensorclass_type=None
):
    """Sends the tree to a rank that has none; to all ranks with `use_broadcast`."""
    tree = _as_class(self, _tensorclass_type)
    if use_broadcast:
        _collectives.broadcast(tree, _rank_of(group), group=group)
    else:
        _collectives.send(tree, dst, group=group)


def from_remote_init(cls, src, group=None, device=None, use_broadcast=False):
    """Returns the tree that rank `src` sends with init_remote, as a new one."""
    if use_broadcast:
        tree = _collectives.broadcast(None, src, group=group)
    else:
        tree = _collectives.recv(None, src, group=group)
    return _to(tree, device)


METHODS = {
    function.__name__: function
    for function in (
        all_reduce,
        reduce,
        broadcast,
        all_gather,
        scatter,
        gather_and_stack,
        send,
        recv,
        isend,
        irecv,
        init_remote,
    )
}
CLASS_METHODS = {"from_remote_init": from_remote_init}


def _rank_of(group) -> int:
    """This rank of the job."""
    return _collectives.resolve(group).global_rank


def _one_peer(in_job, in_group, group, name: str) -> None:
    if (in_job is None) == (in_group is None):
        raise ValueError(f"give either {name} or group_{name}")
    if in_group is not None and group is None:
        raise ValueError(f"group_{name} is a rank in a group: give the group too")


def _copy(tree):
    if getattr(tree, "is_consolidated", bool)() or not hasattr(tree, "clone"):
        return tree
    return tree.clone()


def _copy_rows(tree, others) -> bool:
    """Copies the leaves of others[i] into row i of the leaves of `tree`, if they fit without a cast."""
    rows, sources = [], []
    wanted = _C.read_tree(tree)
    for place, other in enumerate(others):
        got = _C.read_tree(other)
        if len(got) != len(wanted):
            return False
        for (path, leaf), (other_path, source) in zip(wanted, got):
            if path != other_path or type(leaf) is not torch.Tensor or type(source) is not torch.Tensor:
                return False
            if leaf.dtype != source.dtype or leaf.shape != (len(others), *source.shape):
                return False
            rows.append(leaf[place])
            sources.append(source)
    with torch.no_grad():
        torch._foreach_copy_(rows, sources)
    return True


def _last_tag(tree, init_tag: int, pseudo_rand: bool) -> int:
    count = sum(isinstance(leaf, torch.Tensor) for _, leaf in _C.read_tree(tree))
    if not pseudo_rand:
        return init_tag + count - 1
    from tensordict.utils import _int_generator

    tag = init_tag - 1
    for _ in range(count):
        tag = _int_generator(tag + 1)
    return tag


def _tensor_dict_all_reduce(self, op=None, *, group=None, async_op=False, bucket_bytes=None):
    """Reduces every leaf over all ranks of a group, in place. See leafpack.all_reduce.

    The arguments are those of tensordict.TensorDict.all_reduce: without `bucket_bytes` each leaf is a
    message of its own. Returns None, or a leafpack.TreeWork if `async_op`.
    """
    return _collectives.all_reduce(
        self, op, group=group, async_op=async_op, bucket_bytes=bucket_bytes
    )


def attach() -> None:
    """Gives leafpack.TensorDict its methods."""
    for name, function in METHODS.items():
        setattr(_C.TensorDict, name, function)
        setattr(LazyStack, name, function)
    for name, function in CLASS_METHODS.items():
        setattr(_C.TensorDict, name, classmethod(function))
    _tensor_dict_all_reduce.__name__ = "all_reduce"
    _tensor_dict_all_reduce.__qualname__ = "TensorDict.all_reduce"
    _C.TensorDict.all_reduce = _tensor_dict_all_reduce
