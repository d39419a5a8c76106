"""Programs that end early, or right after their last call. Each case runs processes of its own."""

import pytest

import spawn

SMALL, LARGE = 3, 200_000
sizes = pytest.mark.parametrize("numel", (SMALL, LARGE), ids=("small", "large"))


@sizes
def test_exit_right_after_the_last_call(numel):
    ended = spawn.run("exit_after_last_call", arguments=[numel])
    assert [end.code for end in ended] == [11, 12], ended


@sizes
def test_exit_with_work_in_flight(numel):
    ended = spawn.run("exit_with_work_in_flight", arguments=[numel])
    assert [end.code for end in ended] == [11, 12], ended


@sizes
def test_exit_with_work_that_never_ends(numel):
    ended = spawn.run("exit_with_work_that_never_ends", arguments=[numel])
    assert [end.code for end in ended] == [11, 12], ended


@sizes
def test_exit_after_all_was_dropped(numel):
    ended = spawn.run("exit_after_all_was_dropped", arguments=[numel])
    assert [end.code for end in ended] == [0, 0], ended


@sizes
def test_children_of_multiprocessing(numel):
    spawn.succeed("children_of_multiprocessing", size=1, arguments=[numel])


STARTED = "reduce reduce_scatter broadcast all_gather gather gather_and_stack scatter all_to_all".split()


def test_exit_with_each_collective_in_flight():
    ended = spawn.run("exit_with_each_in_flight", arguments=STARTED)
    assert [end.code for end in ended] == [11, 12], ended


@pytest.mark.parametrize("name", ("broadcast", "gather_and_stack", "all_to_all"))
def test_exit_with_a_call_that_no_other_rank_makes(name):
    ended = spawn.run("exit_alone_with", arguments=[name, LARGE])
    assert [end.code for end in ended] == [11, 12], ended
