"""The ways in which benchmarks/peers.py does each collective: tensordict's, torch.distributed by hand, ours.

A mode is a function without arguments that every rank calls, and that returns what it should have given (for
the check before the timing). `by hand, per leaf` and `by hand, flat` know the layout beforehand; flat packs all
leaves into one buffer of bytes, moves it with one call, and copies the pieces into the leaves.
"""

import torch
import torch.distributed as dist
from tensordict import TensorDict

TENSORDICT = "tensordict"
PER_LEAF = "by hand, per leaf"
FLAT = "by hand, flat"
OURS = "leafpack"


def leaves_of(tree):
    return [leaf for _, leaf in sorted(tree.items(True, True), key=lambda item: str(item[0]))]


def empty_like(tree):
    return tree.apply(torch.empty_like)


def pack(leaves):
    return torch.cat([leaf.reshape(-1).view(torch.uint8) for leaf in leaves])


def unpack(flat, leaves):
    pieces = flat.split([leaf.numel() * leaf.element_size() for leaf in leaves])
    for leaf, piece in zip(leaves, pieces):
        if leaf.numel() > 0:
            # A piece may begin anywhere; a view of another dtype may not.
            leaf.reshape(-1).view(torch.uint8).copy_(piece)


def all_reduce(tree, rank, world, leafpack):
    leaves = leaves_of(tree)
    size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    flat = torch.rand(max(1, size // 4))
    by_dtype = {}
    for leaf in leaves:
        by_dtype.setdefault(leaf.dtype, []).append(leaf)

    def coalesced():
        for tensors in by_dtype.values():
            options = torch._C._distributed_c10d.AllreduceCoalescedOptions()
            dist.group.WORLD.allreduce_coalesced(tensors, options).wait()

    modes = {
        "tensordict per leaf": lambda: tree.all_reduce(),
        "tensordict async": lambda: [work.wait() for work in tree.all_reduce(async_op=True)],
        "tensordict 1 MiB": lambda: tree.all_reduce(bucket_bytes=1 << 20),
        "tensordict 25 MiB": lambda: tree.all_reduce(bucket_bytes=25 << 20),
        "c10d coalesced": coalesced,
        "flat c10d": lambda: dist.all_reduce(flat),
    }
    if leafpack is not None:
        modes["leafpack auto"] = lambda: leafpack.all_reduce(tree)
        modes["leafpack async"] = lambda: leafpack.all_reduce(tree, async_op=True).wait()
        modes["leafpack 25 MiB"] = lambda: leafpack.all_reduce(tree, bucket_bytes=25 << 20)
    return modes, "flat c10d"


def broadcast(tree, rank, world, leafpack):
    leaves = leaves_of(tree)

    def per_leaf():
        for leaf in leaves:
            dist.broadcast(leaf, 0)
        return [tree]

    def flat():
        buffer = pack(leaves)
        dist.broadcast(buffer, 0)
        if rank != 0:
            unpack(buffer, leaves)
        return [tree]

    modes = {
        TENSORDICT: lambda: [tree.broadcast(0)],
        PER_LEAF: per_leaf,
        FLAT: flat,
    }
    if leafpack is not None:
        modes[f"{OURS}, in place"] = lambda: [leafpack.broadcast(tree, 0)]
        modes[f"{OURS}, new tree"] = lambda: [leafpack.broadcast(tree if rank == 0 else None, 0)]
    return modes, TENSORDICT


def all_gather(tree, rank, world, leafpack):
    leaves = leaves_of(tree)

    def outputs():
        return [empty_like(tree) for _ in range(world)]

    def per_leaf():
        results = outputs()
        for leaf, *others in zip(leaves, *map(leaves_of, results)):
            dist.all_gather(list(others), leaf)
        return results

    def flat():
        results = outputs()
        buffer = pack(leaves)
        buffers = [torch.empty_like(buffer) for _ in range(world)]
        dist.all_gather(buffers, buffer)
        for received, result in zip(buffers, results):
            unpack(received, leaves_of(result))
        return results

    modes = {TENSORDICT: lambda: tree.all_gather(), PER_LEAF: per_leaf, FLAT: flat}
    if leafpack is not None:
        modes[OURS] = lambda: leafpack.all_gather(tree)
    return modes, TENSORDICT


def scatter(tree, rank, world, leafpack):
    sent = [tree.clone() for _ in range(world)] if rank == 0 else None

    def per_leaf():
        result = empty_like(tree)
        lists = list(zip(*map(leaves_of, sent))) if rank == 0 else None
        for place, leaf in enumerate(leaves_of(result)):
            dist.scatter(leaf, list(lists[place]) if rank == 0 else None, src=0)
        return [result]

    def flat():
        result = empty_like(tree)
        leaves = leaves_of(result)
        buffer = torch.empty(sum(x.numel() * x.element_size() for x in leaves), dtype=torch.uint8)
        packed = [pack(leaves_of(one)) for one in sent] if rank == 0 else None
        dist.scatter(buffer, packed, src=0)
        unpack(buffer, leaves)
        return [result]

    modes = {
        TENSORDICT: lambda: [tree.scatter(0, sent)],
        PER_LEAF: per_leaf,
        FLAT: flat,
    }
    if leafpack is not None:
        modes[f"{OURS}, in place"] = lambda: [leafpack.scatter(tree, sent, 0)]
        modes[f"{OURS}, new tree"] = lambda: [leafpack.scatter(None, sent, 0)]
    return modes, TENSORDICT


def gather_and_stack(tree, rank, world, leafpack):
    leaves = leaves_of(tree)
    # tensordict's form: the rows of the destination's tree take the trees of the others.
    rows = torch.stack([tree] * (world - 1), 0).clone() if rank == 0 else None

    def tensordicts(method):
        method(rows if rank == 0 else tree, 0)
        return list(rows.unbind(0)) if rank == 0 else []

    def per_leaf():
        stacked = [torch.empty(world, *leaf.shape, dtype=leaf.dtype) for leaf in leaves]
        for leaf, stack in zip(leaves, stacked):
            dist.gather(leaf, list(stack.unbind(0)) if rank == 0 else None, dst=0)
        return []

    def flat():
        buffer = pack(leaves)
        buffers = [torch.empty_like(buffer) for _ in range(world)] if rank == 0 else None
        dist.gather(buffer, buffers, dst=0)
        if rank == 0:
            stacked = [torch.empty(world, *leaf.shape, dtype=leaf.dtype) for leaf in leaves]
            for place, received in enumerate(buffers):
                unpack(received, [stack[place] for stack in stacked])
        return []

    own = TensorDict.gather_and_stack
    modes = {TENSORDICT: lambda: tensordicts(own), PER_LEAF: per_leaf, FLAT: flat}
    if leafpack is not None:
        modes[OURS] = lambda: [leafpack.gather_and_stack(tree, 0)][:0]
        installed = leafpack._methods.gather_and_stack
        modes[f"{OURS}, installed"] = lambda: tensordicts(installed)
    return modes, TENSORDICT


def send_recv(tree, rank, world, leafpack):
    """Rank 0 sends to rank 1; the others look on."""
    leaves = leaves_of(tree)

    def transfer(send, receive):
        received = tree
        if rank == 0:
            send()
        elif rank == 1:
            received = receive()
        return [received if isinstance(received, TensorDict) else tree]

    def flat_send():
        dist.send(pack(leaves), 1)

    def flat_receive():
        buffer = torch.empty(sum(x.numel() * x.element_size() for x in leaves), dtype=torch.uint8)
        dist.recv(buffer, 0)
        unpack(buffer, leaves)

    def each(call):
        for leaf in leaves:
            call(leaf)

    modes = {
        TENSORDICT: lambda: transfer(lambda: tree.send(1), lambda: tree.recv(0)),
        f"{TENSORDICT}, early": lambda: transfer(
            lambda: [work.wait() for work in tree.isend(1, return_early=True)],
            lambda: [work.wait() for work in tree.irecv(0, return_premature=True)],
        ),
        PER_LEAF: lambda: transfer(
            lambda: each(lambda leaf: dist.send(leaf, 1)),
            lambda: each(lambda leaf: dist.recv(leaf, 0)),
        ),
        FLAT: lambda: transfer(flat_send, flat_receive),
    }
    if leafpack is not None:
        modes[f"{OURS}, in place"] = lambda: transfer(
            lambda: leafpack.send(tree, 1), lambda: leafpack.recv(tree, 0)
        )
        modes[f"{OURS}, new tree"] = lambda: transfer(
            lambda: leafpack.send(tree, 1), lambda: leafpack.recv(None, 0)
        )
    return modes, TENSORDICT


COLLECTIVES = {
    function.__name__: function
    for function in (all_reduce, broadcast, all_gather, scatter, gather_and_stack, send_recv)
}
