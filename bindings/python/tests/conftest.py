"""Fixtures of the tests that run as several ranks: every rank runs the same tests in the same order."""

import datetime
import os

import pytest
import torch
import torch.distributed as dist

import leafpack

# Whether torch's own collectives do nothing here.
FAKE = os.environ.get("TORCH_BACKEND", "gloo") == "fake"
if FAKE:
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 (registers it)

# Long enough for a machine that is busy with other things; a test that reaches it has failed.
TIMEOUT = datetime.timedelta(seconds=120)


@pytest.fixture(scope="session")
def world():
    """The rank and the number of ranks, with torch's default process group."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        if FAKE:
            # Torch's FakeProcessGroup moves nothing: all that arrives is leafpack's doing.
            store, rank, size = next(dist.rendezvous("env://"))
            dist.init_process_group("fake", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        else:
            dist.init_process_group("gloo", timeout=TIMEOUT)
    yield int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    leafpack.barrier()
    dist.destroy_process_group()
