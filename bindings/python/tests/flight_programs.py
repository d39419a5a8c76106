"""Programs that leave flight records."""

import os
import signal
import time

import torch
import torch.distributed as dist

import leafpack
from rank_program import LARGE, RANK, SIZE, check_usable, finish, init


def flight(folder, what):
    """The ranks differ as `what` says; each leaves a record in `folder`."""
    leafpack.flight_on_error(folder)
    init()
    for numel in (3, LARGE):
        leafpack.all_reduce({"x": torch.ones(numel)}, name="first")
    last = RANK == SIZE - 1
    try:
        if what == "missing":  # the last rank does not come, and lives
            if last:
                leafpack.flight_dump(folder)
                time.sleep(3)
            else:
                leafpack.all_reduce({"x": torch.ones(3)}, name="second", timeout=1)
        elif what == "mismatch":
            leafpack.all_reduce({"x": torch.ones(3 + last)}, name="second")
        elif what == "killed":
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            leafpack.all_reduce({"x": torch.ones(3)}, name="second")
        elif what == "refused":
            leafpack.all_reduce({"x": torch.ones(3), "y": None if last else torch.ones(1)})
        else:
            leafpack.flight_dump(folder)
    except (leafpack.Error, ValueError, TypeError) as error:
        print(error)
    os._exit(0)


def flight_signal(folder):
    """Rank 0 is stuck in a call; a signal makes it tell where."""
    init()
    check_usable()
    leafpack.flight_on_signal(signal.SIGUSR1, folder)
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(SIZE)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    if RANK == 0:
        tree = {"x": torch.ones(3)}
        leafpack.all_reduce(tree, name="stuck", timeout=100)
        assert tree["x"].tolist() == [SIZE] * 3
    else:
        path = f"{folder}/flight-rank0-{pids[0].item()}.json"
        deadline = time.monotonic() + 60
        while RANK == 1:
            os.kill(pids[0].item(), signal.SIGUSR1)
            time.sleep(0.2)
            text = open(path).read() if os.path.exists(path) else ""
            if '"stuck"' in text:
                print(text)
                break
            assert time.monotonic() < deadline, "no record"
        leafpack.all_reduce({"x": torch.ones(3)}, name="stuck", timeout=100)
    record = leafpack.flight_record()
    (group,) = record["groups"]
    assert group["rank"] == RANK and group["ranks"] == list(range(SIZE))
    assert [call["state"] for call in group["calls"]] == ["done"] * 3, group["calls"]
    assert group["calls"][-1]["name"] == "stuck" and group["calls"][0]["kind"] == "all_reduce"
    finish()
