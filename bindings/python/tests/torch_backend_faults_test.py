"""Dead and missing ranks under torch.distributed's backend "shm"."""

import pytest

import spawn


@pytest.mark.parametrize("kind", ("all_reduce", "flying", "recv"))
def test_a_rank_is_killed(kind):
    ended = spawn.run("torch_shm_killed", size=3, arguments=[kind, 1])
    for rank, end in enumerate(ended):
        assert end.code == (-9 if rank == 1 else 0), f"rank {rank}: {end.code}\n{end.err}"


def test_a_rank_that_makes_no_call_is_named():
    spawn.succeed("torch_shm_missing", size=3)
