"""Ctrl-C and other signals during a wait. Each case runs processes of its own."""

import pytest

import spawn

SMALL, LARGE = 3, 200_000
EVERY = (
    "reduce reduce_scatter broadcast all_gather gather gather_and_stack scatter all_to_all barrier "
    "all_gather_bytes send recv isend irecv"
).split()
sizes = pytest.mark.parametrize("numel", (SMALL, LARGE), ids=("small", "large"))


@pytest.mark.parametrize("how", ("sync", "async", "bucket"))
@sizes
def test_ctrl_c(numel, how):
    spawn.succeed("interrupt", arguments=[numel, how])


@sizes
def test_a_signal_handler_that_raises(numel):
    spawn.succeed("handler_that_raises", arguments=[numel])


def test_a_signal_handler_that_returns():
    spawn.succeed("handler_that_returns")


def test_ctrl_c_in_each_collective():
    spawn.succeed("interrupt_each", size=3, arguments=EVERY, timeout=300)


@pytest.mark.parametrize("what", ("call", "send"))
@sizes
def test_ctrl_c_in_a_shutdown(what, numel):
    spawn.succeed("interrupted_shutdown", arguments=[what, numel])
