"""Programs whose ranks leave: with work in flight, and in forked children."""

import atexit
import glob
import multiprocessing
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import leafpack
from rank_program import LARGE, RANK, SIZE, TRANSFERS, check_usable, collective, finish, init


def exit_after_last_call(numel):
    init()
    for _ in range(3):
        tree = {"x": torch.ones(int(numel))}
        leafpack.all_reduce(tree)
        assert tree["x"][0].item() == SIZE
    sys.exit(11 + RANK)


def exit_after_all_was_dropped(numel):
    """Nothing is left of a call but the call. It ends while Python is whole: its thread takes Python's lock to free
    the tensors, and is ended, and the process with it, where Python goes down meanwhile."""
    init()
    group = leafpack.Group.around().new_group(range(SIZE))
    check_usable(group)
    if RANK == 0:
        leafpack.all_reduce({"x": torch.ones(int(numel))}, group=group, async_op=True)
        handler = leafpack._groups._shut_down_all
        atexit.unregister(handler)
        atexit.register(_exit_if_a_worker_is_left)  # runs after
        atexit.register(handler)
    else:
        time.sleep(20)  # then the call would fail


def _exit_if_a_worker_is_left():
    for _ in range(30):
        threads = [open(path).read().strip() for path in glob.glob("/proc/self/task/*/comm")]
        if "leafpack-work" not in threads:
            return
        time.sleep(0.1)
    print(threads, flush=True)
    os._exit(9)


def fork_with_work_in_flight(numel):
    """A child cannot finish a call of its parent: its handle says so and ends, and the parent goes on."""
    init()
    check_usable()
    tree = {"x": torch.ones(int(numel))}
    if RANK == 0:
        work = leafpack.all_reduce(tree, async_op=True)
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            for handle in (work, list(work)[-1]):
                assert handle.is_completed()
                try:
                    handle.wait()
                except RuntimeError as error:
                    assert "forked" in str(error), error
                else:
                    raise AssertionError("a child waited for a call of its parent")
            work.cancel()
            del work, handle
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        dist.barrier()
        work.wait()
    else:
        dist.barrier()  # so that the call is in flight as long as the child lives
        leafpack.all_reduce(tree)
    assert tree["x"].unique().tolist() == [SIZE]
    check_usable()
    finish()


def exit_with_work_in_flight(numel):
    """All ranks start a call and leave without waiting for it."""
    init()
    check_usable()
    leafpack.all_reduce({"x": torch.ones(int(numel))}, async_op=True)
    sys.exit(11 + RANK)


def exit_with_work_that_never_ends(numel):
    """Rank 0 starts a call that no other rank makes, and leaves."""
    init()
    check_usable()
    if RANK == 0:
        global kept
        kept = leafpack.all_reduce({"x": torch.ones(int(numel))}, async_op=True)
    else:
        time.sleep(1)
    sys.exit(11 + RANK)


def _child(rank, port, numel):
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    tree = {"x": torch.ones(numel)}
    leafpack.all_reduce(tree)
    assert tree["x"][0].item() == 2
    sys.exit(21 + rank)


def children_of_multiprocessing(numel):
    """Children of multiprocessing skip atexit. Run as one rank that starts two."""
    context = multiprocessing.get_context("spawn")
    port = os.environ["MASTER_PORT"]
    children = [context.Process(target=_child, args=(r, port, int(numel))) for r in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [21, 22]


def exit_with_each_in_flight(*names):
    """Every rank starts each of these calls and leaves without waiting for them."""
    init()
    check_usable()
    kept = []
    for name in names:
        for numel in (3, LARGE):
            arguments = {} if name in TRANSFERS else {"async_op": True}
            kept.append(collective(name, numel, **arguments))
    if RANK == 0:
        del kept
    sys.exit(11 + RANK)


def exit_alone_with(name, numel):
    """Rank 0 starts a call that no other rank makes, and leaves."""
    init()
    check_usable()
    if RANK == 0:
        global alone
        alone = collective(name, numel, **({} if name in TRANSFERS else {"async_op": True}))
    else:
        time.sleep(1)
    sys.exit(11 + RANK)
