"""The collectives on trees.

What holds for all of them: every rank of the group makes the same call. Before a leaf moves the ranks compare
their calls; if they disagree every rank gets a LayoutMismatchError that names the first difference. A rank
that cannot take part (a bad argument, a leaf that cannot be moved) raises its own error and the others raise
PeerRefusedError; nobody waits, and nothing has changed. The keywords that all of them take:

    group: a group of torch.distributed, a leafpack.Group, or None for the default group of
        torch.distributed.
    timeout: of the whole call, in seconds or as a timedelta; None is the group's.
    name: makes a mix-up of two calls that look alike an error; at most 256 bytes.
    check: "always"; "first" trusts what was agreed before where that saves time; "off" sends nothing.
    async_op: True to return a TreeWork at once, whose result() is what the call returns. The trees must be
        left alone until it is waited for.

`dst` and `src` are ranks of the job, `group_dst` and `group_src` ranks in the group; only one of the two may
be given.
"""

from __future__ import annotations

from leafpack import _C
from leafpack._groups import resolve

_all_reduce = _C.all_reduce


def all_reduce(
    tree,
    op="sum",
    *,
    group=None,
    async_op=False,
    bucket_bytes="auto",
    timeout=None,
    leaves="all",
    name=None,
    on_failure="report",
    check="always",
    stats=None,
):
    """Reduces every tensor of a tree over all ranks of a group, in place.

    All ranks get equal bits. Before a leaf changes the ranks compare the layouts of their trees and
    the arguments of their calls; if they disagree every rank gets a LayoutMismatchError that names the
    first difference. A rank that cannot take part (a bad argument, a leaf that cannot be reduced) raises
    its own error and the others raise PeerRefusedError; nobody waits, and nothing has changed.

    Args:
        tree: a leafpack.TensorDict; a tensordict.TensorDict, lazy stack or tensorclass; a dict, list
            or tuple of trees; a torch.nn.Module (its parameters); a tensor. Names of dicts are
            strings, positions are ints; their order does not matter. Non-tensor entries of a tensordict
            must be equal on all ranks.
        op: "sum", "avg", "product", "min", "max", "band", "bor", "bxor", leafpack.premul_sum(factor),
            a torch.distributed.ReduceOp, or None, which is the sum.
        group: a group of torch.distributed, a leafpack.Group, or None for the default group of
            torch.distributed.
        async_op: True to return a TreeWork at once; the leaves must be left alone until it is waited for.
        bucket_bytes: "auto", None (one message per leaf), or the most bytes that go in one message.
        timeout: of the whole call, in seconds or as a timedelta; None is the group's.
        leaves: "all", "floating" (floating and complex leaves), or a function of the path (a tuple)
            and the leaf that says which take part. All ranks must choose the same.
        name: makes a mix-up of two calls with equal layouts an error; at most 256 bytes.
        on_failure: what a call that fails after data began to move leaves behind: "report" (the error's
            `paths_done` lists the leaves that are done) or "restore" (the tree is as it was).
        check: "always"; "first" trusts a layout that was agreed before where that saves time; "off"
            sends nothing.
        stats: a dict that a synchronous call fills with where its time went, in seconds.

    Returns:
        None, or a leafpack.TreeWork if `async_op`.

    Raises:
        LayoutMismatchError, PeerRefusedError, UnsupportedError, DeadlineError, PeerLostError,
        ValueError, TypeError: see the manual.
    """
    return _all_reduce(
        resolve(group),
        tree,
        op,
        async_op,
        bucket_bytes,
        timeout,
        leaves,
        name,
        on_failure,
        check,
        stats,
    )


def reduce(
    tree,
    dst=None,
    op="sum",
    *,
    group_dst=None,
    group=None,
    async_op=False,
    bucket_bytes="auto",
    leaves="all",
    on_failure="report",
    timeout=None,
    name=None,
    check="always",
    stats=None,
):
    """Reduces every tensor of a tree over all ranks into the leaves of rank `dst`.

    The leaves of the other ranks do not change. The arguments are those of all_reduce.

    Returns:
        None, or a leafpack.TreeWork if `async_op`.
    """
    return _C.reduce(
        resolve(group),
        tree,
        dst,
        group_dst,
        op,
        async_op,
        bucket_bytes,
        leaves,
        on_failure,
        stats,
        timeout,
        name,
        check,
    )


def reduce_scatter(
    trees,
    op="sum",
    *,
    group=None,
    async_op=False,
    bucket_bytes="auto",
    leaves="all",
    on_failure="report",
    timeout=None,
    name=None,
    check="always",
    stats=None,
):
    """Reduces one tree for each rank: the reduction of all ranks' trees[i] ends on group rank i.

    The leaves of this rank's own tree, trees[rank], are written in place; those of the others do not
    change. The arguments are those of all_reduce.

    Returns:
        trees[rank], or a leafpack.TreeWork if `async_op`.
    """
    return _C.reduce_scatter(
        resolve(group),
        trees,
        op,
        async_op,
        bucket_bytes,
        leaves,
        on_failure,
        stats,
        timeout,
        name,
        check,
    )


def broadcast(
    tree=None,
    src=None,
    *,
    group_src=None,
    group=None,
    async_op=False,
    timeout=None,
    name=None,
    check="always",
):
    """Sends the tree of rank `src` to every rank.

    A rank that gives a tree has it written in place: its layout must be the sender's (its plain values
    too). A rank that gives None gets a new tree of the kind that was sent: keys, shapes, dtypes and batch
    sizes come with it.

    Returns:
        The tree, or a leafpack.TreeWork if `async_op`.
    """
    return _C.broadcast(
        resolve(group), tree, src, group_src, async_op, timeout, name, check
    )


def all_gather(tree, *, group=None, async_op=False, timeout=None, name=None, check="always"):
    """Gives every rank the trees of all ranks. They may differ in every way.

    Returns:
        A list of new trees, by group rank (this rank's own is a copy), or a leafpack.TreeWork.
    """
    return _C.all_gather(resolve(group), tree, async_op, timeout, name, check)


def gather(
    tree,
    dst=None,
    *,
    group_dst=None,
    group=None,
    async_op=False,
    timeout=None,
    name=None,
    check="always",
):
    """Gives rank `dst` (rank 0 of the job unless told otherwise) the trees of all ranks.

    Returns:
        On `dst` a list of new trees, by group rank; None elsewhere; or a leafpack.TreeWork.
    """
    return _C.gather(resolve(group), tree, dst, group_dst, async_op, timeout, name, check)


def gather_and_stack(
    tree,
    dst=None,
    *,
    group_dst=None,
    group=None,
    async_op=False,
    timeout=None,
    name=None,
    check="always",
):
    """Gives rank `dst` one tree in which the leaves of all ranks are stacked along a new first dimension.

    The layouts of the trees must be equal.

    Returns:
        On `dst` a new tree, whose batch sizes begin with the number of ranks; None elsewhere; or a
        leafpack.TreeWork.
    """
    return _C.gather_and_stack(
        resolve(group), tree, dst, group_dst, async_op, timeout, name, check
    )


def scatter(
    tree=None,
    trees=None,
    src=None,
    *,
    group_src=None,
    group=None,
    async_op=False,
    timeout=None,
    name=None,
    check="always",
):
    """Sends trees[i] of rank `src` (rank 0 of the job unless told otherwise) to group rank i.

    A rank that gives `tree` has it written in place: its layout must be that of the tree that it is sent.
    Else it gets a new one. Only `src` gives `trees`.

    Returns:
        This rank's tree, or a leafpack.TreeWork.
    """
    return _C.scatter(
        resolve(group), tree, trees, src, group_src, async_op, timeout, name, check
    )


def all_to_all(trees, *, group=None, async_op=False, timeout=None, name=None, check="always"):
    """Sends trees[i] of every rank to group rank i. They may differ in every way.

    Returns:
        A list of new trees, one from each rank, by group rank; or a leafpack.TreeWork.
    """
    return _C.all_to_all(resolve(group), trees, async_op, timeout, name, check)


def barrier(*, group=None, timeout=None, name=None, check="always"):
    """Waits until every rank of the group has come. A DeadlineError names those that have not."""
    return _C.barrier(resolve(group), timeout, name, check)


def broadcast_bytes(
    data=None,
    src=None,
    *,
    group_src=None,
    group=None,
    async_op=False,
    timeout=None,
    name=None,
    check="always",
):
    """Returns, on every rank, the bytes that rank `src` gives. The others' `data` is not looked at.

    With `async_op` a leafpack.TreeWork whose `result()` is that, as of every call here; `data` is copied before
    the call returns.
    """
    return _C.broadcast_bytes(resolve(group), data, src, group_src, async_op, timeout, name, check)


def all_gather_bytes(data, *, group=None, async_op=False, timeout=None, name=None, check="always"):
    """Returns, on every rank, the list of the bytes that each rank gives, by group rank."""
    return _C.all_gather_bytes(resolve(group), data, async_op, timeout, name, check)


def gather_bytes(
    data,
    dst=None,
    *,
    group_dst=None,
    group=None,
    async_op=False,
    timeout=None,
    name=None,
    check="always",
):
    """Returns, on rank `dst`, the list of the bytes that each rank gives; None elsewhere."""
    return _C.gather_bytes(resolve(group), data, dst, group_dst, async_op, timeout, name, check)


def scatter_bytes(
    data=None,
    src=None,
    *,
    group_src=None,
    group=None,
    async_op=False,
    timeout=None,
    name=None,
    check="always",
):
    """Returns data[i] of rank `src` on group rank i. The others' `data` is not looked at."""
    return _C.scatter_bytes(resolve(group), data, src, group_src, async_op, timeout, name, check)


# Point to point: calls of two ranks. They need not stand in one order with the collectives of the group.


def _send(tree, dst, group_dst, tag, group, async_op, timeout, name, check):
    return _C.send(resolve(group), tree, dst, group_dst, tag, async_op, timeout, name, check)


def _recv(tree, src, group_src, tag, group, async_op, timeout, name, check):
    return _C.recv(resolve(group), tree, src, group_src, tag, async_op, timeout, name, check)


def send(
    tree, dst=None, *, group_dst=None, tag=0, group=None, timeout=None, name=None, check="always"
):
    """Sends a tree to rank `dst`; returns when it has the whole tree.

    Transfers match by sender and tag, in order. A receiver whose tree is laid out otherwise is an error on
    both ranks. Two ranks that both send first wait for each other: use isend or irecv.
    """
    return _send(tree, dst, group_dst, tag, group, False, timeout, name, check)


def isend(
    tree, dst=None, *, group_dst=None, tag=0, group=None, timeout=None, name=None, check="always"
):
    """Starts send and returns a leafpack.TreeWork. The leaves must not be written until it is waited for."""
    return _send(tree, dst, group_dst, tag, group, True, timeout, name, check)


def recv(
    tree=None,
    src=None,
    *,
    group_src=None,
    tag=0,
    group=None,
    timeout=None,
    name=None,
    check="always",
):
    """Receives a tree from rank `src`, or from any rank: into `tree`, or into a new one.

    Returns:
        The tree. Without `src` and `group_src`: the tree, and the rank of the job that it came from.
    """
    return _recv(tree, src, group_src, tag, group, False, timeout, name, check)


def irecv(
    tree=None,
    src=None,
    *,
    group_src=None,
    tag=0,
    group=None,
    timeout=None,
    name=None,
    check="always",
):
    """Starts recv and returns a leafpack.TreeWork, whose result() is what recv returns."""
    return _recv(tree, src, group_src, tag, group, True, timeout, name, check)
