"""Groups outside, before and after torch.distributed. Each case runs processes of its own."""

import pytest

import spawn


def test_a_rank_outside_the_group():
    spawn.succeed("rank_outside")


def test_no_group():
    spawn.succeed("no_group", size=1)


def test_a_second_life():
    spawn.succeed("a_second_life")


@pytest.mark.parametrize("size", (1, 3))
def test_group_from_the_environment(size):
    spawn.succeed("own_group", size, arguments=["environment"])


def test_group_from_a_file(tmp_path):
    spawn.succeed("own_group", 2, arguments=["file", tmp_path / "store"])


@pytest.mark.parametrize("numel", (3, 200_000), ids=("small", "large"))
def test_a_fork_with_work_in_flight(numel):
    spawn.succeed("fork_with_work_in_flight", arguments=[numel])
