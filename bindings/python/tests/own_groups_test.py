"""Groups of leafpack's own: where they meet, sub-groups, and their end. Each case runs processes of its own."""

import os
import signal
import socket

import pytest

import spawn

SMALL, LARGE = 3, 200_000
sizes = pytest.mark.parametrize("numel", (SMALL, LARGE), ids=("small", "large"))


@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_sub_groups(ranks):
    spawn.succeed("sub_groups", size=ranks)


def test_a_split_that_one_rank_gets_wrong():
    spawn.succeed("refused_split", size=3)


def test_a_store_that_answers_nothing():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        spawn.succeed("interrupted_meeting", size=1, arguments=[url])
    spawn.succeed("interrupted_meeting", size=1, arguments=[url])  # nobody listens there any more


def test_from_the_environment():
    spawn.succeed("from_url", arguments=["env://"])


def test_over_tcp():
    spawn.succeed("from_url", arguments=[f"tcp://127.0.0.1:{spawn._free_port()}"])


def test_over_a_file(tmp_path):
    for _ in range(2):
        spawn.succeed("from_url", arguments=[f"file://{tmp_path}/meet"])
        assert os.listdir(tmp_path) == []


def test_a_file_of_a_killed_run(tmp_path):
    url = f"file://{tmp_path}/meet"
    ended = spawn.run("killed_at", arguments=[url])
    assert [end.code for end in ended] == [-signal.SIGKILL] * 2, ended
    assert os.listdir(tmp_path) != []
    spawn.succeed("from_url", arguments=[url])
    assert os.listdir(tmp_path) == []


@sizes
def test_shutdown_with_work_that_never_ends(numel):
    spawn.succeed("shutdown_with_work", arguments=[numel, 0.5])


@sizes
def test_shutdown_drains_what_is_in_flight(numel):
    spawn.succeed("shutdown_drains", size=3, arguments=[numel])
