"""Late and dead ranks. Each case runs processes of its own."""

import pytest

import spawn

SMALL, LARGE = 3, 200_000
sizes = pytest.mark.parametrize("numel", (SMALL, LARGE), ids=("small", "large"))


@pytest.mark.parametrize("who", (0, 2))
@sizes
def test_a_late_rank(numel, who):
    spawn.succeed("late", size=3, arguments=[numel, who])


def test_a_rank_that_is_late_for_the_first_call():
    spawn.succeed("late_before_the_first_call")


def test_a_wait_that_times_out():
    spawn.succeed("a_wait_that_times_out")


@pytest.mark.parametrize("who", (0, 1))
@sizes
def test_a_rank_is_killed(numel, who):
    ended = spawn.run("killed", size=3, arguments=[numel, who])
    for rank, end in enumerate(ended):
        assert end.code == (-9 if rank == who else 0), f"rank {rank}: {end.code}\n{end.err}"


EVERY = (
    "reduce reduce_scatter broadcast all_gather gather gather_and_stack scatter all_to_all barrier"
).split()


@pytest.mark.parametrize("who", (0, 2))
def test_a_rank_that_is_late_for_each_collective(who):
    spawn.succeed("late_or_killed", size=3, arguments=["late", who, *EVERY], timeout=300)


@pytest.mark.parametrize("who", (0, 1))
def test_a_rank_is_killed_before_each_collective(who):
    ended = spawn.run("late_or_killed", size=3, arguments=["killed", who, *EVERY], timeout=300)
    for rank, end in enumerate(ended):
        assert end.code == (-9 if rank == who else 0), f"rank {rank}: {end.code}\n{end.err}"
