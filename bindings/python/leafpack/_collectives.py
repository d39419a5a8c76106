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

import torch

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


def all_gather_joined(
    tree,
    joining="stack",
    out=None,
    *,
    group=None,
    async_op=False,
    timeout=None,
    name=None,
    check="always",
):
    """Gives every rank one tree of the leaves of all ranks. The layouts of the trees must be equal.

    Args:
        tree: this rank's tree.
        joining: "stack": leaves [n, ...] become [ranks, n, ...]; "concat": [ranks * n, ...], along the first
            dimension, which every leaf must have. Batch sizes likewise. By group rank.
        out: a tree of the keys and dtypes of `tree` and the joined sizes, which is written in place; None: a
            new one of the kind of `tree`.

    Returns:
        `out` or the new tree, or a leafpack.TreeWork if `async_op`.

    Raises:
        ValueError: a leaf of `out` has another size or dtype, or a leaf without dimensions is to be
            concatenated. Nothing was moved.
        leafpack.LayoutMismatchError: the trees differ.
    """
    return _C.all_gather_joined(
        resolve(group), tree, joining, out, async_op, timeout, name, check
    )


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


def share(tree, *, group=None, timeout=None, name=None):
    """Moves a tree, once, into memory that all ranks of the group map; all_reduce of it then copies nothing.

    For groups of the backend "shm" whose ranks are on one host; on others it is an UnsupportedError. The layouts
    of all ranks must be equal. The new tree has the keys, dtypes, shapes and values of `tree`, whose leaves are
    left alone. Its leaves are ordinary CPU tensors: write them in place (set_, copy_, an optimizer's step) to keep
    them there. A leaf that is replaced, on one rank or on all, goes the ordinary way.

    After an all_reduce of them that failed while data was under way they are ordinary leaves, at the same addresses;
    share moves them anew. The memory is released when the last rank has dropped its leaves. On a MemoryError, as on any other error,
    no rank has a new tree.

    Args:
        tree: as for all_reduce. A torch.nn.Module has its parameters' data moved, and is returned.

    Returns:
        The tree of the moved leaves, of the kind of `tree`.
    """
    pg = resolve(group)
    if not isinstance(tree, torch.nn.Module):
        return _C.share(pg, tree, timeout, name)
    parameters = dict(tree.named_parameters(remove_duplicate=False))
    moved = _C.share(pg, parameters, timeout, name)
    for path, parameter in parameters.items():
        parameter.data = moved[path].detach()
    return tree


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


class P2POp:
    """One transfer of batch_isend_irecv, which looks at the arguments.

    Args:
        op: leafpack.isend or leafpack.irecv.
        tree: what is sent, or what is received into; None with irecv: into a new tree.
        peer: the other rank, a rank of the job. None with irecv and without group_peer: any rank.
        group: of torch.distributed, or a leafpack.Group; None is the default group of torch.distributed.
        tag: transfers match by sender and tag, in order.
        group_peer: the other rank as a rank in the group, in place of peer.
        timeout: of the transfer, in seconds or as a timedelta; None is the group's.
    """

    __slots__ = ("op", "tree", "peer", "group", "tag", "group_peer", "timeout")

    def __init__(
        self, op, tree, peer=None, *, group=None, tag=0, group_peer=None, timeout=None
    ):
        self.op = op
        self.tree = tree
        self.peer = peer
        self.group = group
        self.tag = tag
        self.group_peer = group_peer
        self.timeout = timeout

    def __repr__(self) -> str:
        op = getattr(self.op, "__name__", repr(self.op))
        kind = "None" if self.tree is None else f"a {type(self.tree).__name__}"
        rank = (
            f"group_peer={self.group_peer!r}"
            if self.peer is None and self.group_peer is not None
            else f"peer={self.peer!r}"
        )
        return f"leafpack.P2POp({op} of {kind}, {rank}, tag={self.tag!r})"


def batch_isend_irecv(ops):
    """Starts sends and receives together, in their order. Transfers of any size cross without a deadlock.

    All are checked before one is posted: after an error nothing is under way, and the group is as it was. The
    trees must be left alone until their works are waited for; several receives may not share memory. Any number
    of threads may call it, beside collectives too.

    Args:
        ops: a list of leafpack.P2POp, all on one group. An empty one is no call.

    Returns:
        A list with a leafpack.TreeWork for each op, in order, whose result() is what send or recv returns: None;
        the tree; the tree and the rank of the job that it came from, of a receive from any rank. Errors of a
        transfer (see the manual) come from its own work.

    Raises:
        ValueError, TypeError, UnsupportedError: name the op ("batch_isend_irecv[3] on rank 1: ...").
    """
    if not isinstance(ops, (list, tuple)):
        raise TypeError(
            f"batch_isend_irecv{_on_rank(None)}: ops must be a list of leafpack.P2POp, not {ops!r}"
        )
    group, rows = None, []
    for index, op in enumerate(tuple(ops)):
        try:
            if not isinstance(op, P2POp):
                raise TypeError(f"op must be a leafpack.P2POp, not {op!r}")
            if op.op is not isend and op.op is not irecv:
                raise ValueError(
                    f"op must be of leafpack.isend or leafpack.irecv, not of {op.op!r}"
                )
            own = resolve(op.group)
            if group is None:
                group = own
            elif own is not group:
                raise ValueError("the ops of a batch must be of one group; the group is not that of op 0")
        except (TypeError, ValueError) as error:
            given = group if index else getattr(op, "group", None)
            raise type(error)(f"batch_isend_irecv[{index}]{_on_rank(given)}: {error}") from None
        rows.append((op.op is isend, op.tree, op.peer, op.group_peer, op.tag, op.timeout))
    return _C.batch_isend_irecv(group, rows) if rows else []


def _on_rank(group) -> str:
    try:
        return f" on rank {resolve(group).global_rank}"
    except (TypeError, ValueError):  # there is no such group, which is said elsewhere
        return ""
