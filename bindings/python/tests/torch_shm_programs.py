"""Programs of torch.distributed over its backend shm."""

import datetime
import os
import signal
import time

import torch
import torch.distributed as dist

from rank_program import RANK, SIZE, finish, leave_together


def torch_shm_killed(kind, who):
    who = int(who)
    torch.set_num_threads(1)
    dist.init_process_group("shm", timeout=datetime.timedelta(seconds=120))
    tensor = torch.ones(600_001)
    dist.all_reduce(tensor)
    if RANK == who:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    for attempt in range(2):
        try:
            if kind == "all_reduce":
                dist.all_reduce(tensor)
            elif kind == "flying":
                dist.all_reduce(tensor, async_op=True).get_future().wait()
            else:
                dist.recv(tensor, who)
        except RuntimeError as error:
            assert f"group rank {who} is gone" in str(error), error
            assert f"group rank {RANK} of {SIZE}" in str(error), error
        else:
            raise AssertionError("a rank is dead")
    assert time.monotonic() - started < 30
    leave_together(who)


def torch_shm_missing():
    """The last rank makes no call."""
    torch.set_num_threads(1)
    dist.init_process_group("shm", timeout=datetime.timedelta(seconds=120))
    dist.barrier()
    short = dist.new_group(backend="shm", timeout=datetime.timedelta(seconds=2))
    if RANK < SIZE - 1:
        for call, text in [
            (lambda: dist.recv(torch.ones(1), SIZE - 1, group=short, tag=4),
             f"no message with tag 4 from group rank {SIZE - 1}"),
            (lambda: dist.barrier(group=short), f"group rank {SIZE - 1} did not call it in time"),
            (lambda: dist.barrier(group=short), "barrier number 1 failed before"),
        ]:
            try:
                call()
            except dist.DistBackendError as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
    finish()
