"""Fixtures of the tests that run as several ranks: every rank runs the same tests in the same order."""

import datetime
import os

import pytest
import torch
import torch.distributed as dist

# Long enough for a machine that is busy with other things; a test that reaches it has failed.
TIMEOUT = datetime.timedelta(seconds=120)


@pytest.fixture(scope="session")
def world():
    """The rank and the number of ranks, with torch's default process group."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=TIMEOUT)
    yield int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.barrier()
    dist.destroy_process_group()
