"""The collectives on trees."""

from __future__ import annotations

from leafpack import _C
from leafpack._groups import resolve

_call = _C.all_reduce


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
    """Reduces every leaf of a tree over all ranks of a group, in place.

    All ranks get equal bits. Before a leaf changes the ranks compare the layouts of their trees and
    the arguments of their calls; if they disagree every rank gets a LayoutMismatchError that names the
    first difference. A rank that cannot take part (a bad argument, a leaf that cannot be reduced) raises
    its own error and the others raise PeerRefusedError; nobody waits, and nothing has changed.

    Args:
        tree: a leafpack.TensorDict; a tensordict.TensorDict, lazy stack or tensorclass; a dict, list
            or tuple of trees; a torch.nn.Module (its parameters); a tensor. Names of dicts are
            strings, positions are ints; their order does not matter.
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
    return _call(
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


def _tensor_dict_all_reduce(self, op=None, *, group=None, async_op=False, bucket_bytes=None):
    """Reduces every leaf over all ranks of a group, in place. See leafpack.all_reduce.

    The arguments are those of tensordict.TensorDict.all_reduce: without `bucket_bytes` each leaf is a
    message of its own.
    """
    return all_reduce(self, op, group=group, async_op=async_op, bucket_bytes=bucket_bytes)


_tensor_dict_all_reduce.__name__ = "all_reduce"
_tensor_dict_all_reduce.__qualname__ = "TensorDict.all_reduce"
_C.TensorDict.all_reduce = _tensor_dict_all_reduce
