"""What the programs of spawn.py have in common: who this rank is, its group, and one call of each collective."""

import datetime
import os
import pathlib
import signal
import threading
import time

import torch
import torch.distributed as dist

import leafpack

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
LARGE = 200_000  # elements; a small tree has 3


def init(timeout=120):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))


def finish():
    dist.barrier()
    dist.destroy_process_group()


def leave_together(gone):
    """Ends this process once every rank but `gone`, which is dead, is here too.

    Through files: after a death not even a barrier is possible. A rank that left early would be
    named beside the dead one to those that still wait for their error.
    """
    folder = pathlib.Path(os.environ["RANKS_FOLDER"])
    (folder / f"through.{RANK}").touch()
    end = time.monotonic() + 120
    while len(list(folder.glob("through.*"))) < SIZE - 1:
        assert time.monotonic() < end, f"not all but {gone} came: {list(folder.iterdir())}"
        time.sleep(0.002)
    os._exit(0)


def check_usable(group=None, size=SIZE):
    for numel in (3, 40_000):
        tree = {"x": torch.ones(numel)}
        leafpack.all_reduce(tree, group=group)
        assert tree["x"].unique().tolist() == [size]


def interrupt_after(seconds):
    """Presses Ctrl-C in this process."""
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def collective(name, numel, **arguments):
    """One call of a collective on a tree of `numel` ones; returns its result, or its work."""
    tree = {"x": torch.ones(int(numel))}
    other = (RANK + 1) % SIZE
    return {
        "all_reduce": lambda: leafpack.all_reduce(tree, **arguments),
        "reduce": lambda: leafpack.reduce(tree, 0, **arguments),
        "reduce_scatter": lambda: leafpack.reduce_scatter(
            [{"x": torch.ones(int(numel))} for _ in range(SIZE)], **arguments
        ),
        "broadcast": lambda: leafpack.broadcast(tree if RANK == 1 else None, 1, **arguments),
        "all_gather": lambda: leafpack.all_gather(tree, **arguments),
        "gather": lambda: leafpack.gather(tree, **arguments),
        "gather_and_stack": lambda: leafpack.gather_and_stack(tree, **arguments),
        "scatter": lambda: leafpack.scatter(
            None, [tree] * SIZE if RANK == 1 else None, 1, **arguments
        ),
        "all_to_all": lambda: leafpack.all_to_all([tree] * SIZE, **arguments),
        "barrier": lambda: leafpack.barrier(**arguments),
        "all_gather_bytes": lambda: leafpack.all_gather_bytes(b"x" * int(numel), **arguments),
        "send": lambda: leafpack.send(tree, other, **arguments),
        "recv": lambda: leafpack.recv(None, other, **arguments),
        "isend": lambda: leafpack.isend(tree, other, **arguments),
        "irecv": lambda: leafpack.irecv(None, other, **arguments),
    }[name]()


TRANSFERS = ("send", "recv", "isend", "irecv")
NO_HANDLE = ("barrier", "send", "recv")
