"""Groups of leafpack's own: where they meet, sub-groups, and their end. Each case runs processes of its own."""

import os
import signal
import socket

import leafpack
import pytest
import torch.distributed as dist

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


def test_what_no_group_can_be_made_of(tmp_path):
    store = dist.HashStore()
    group = leafpack.Group.from_store(store, 1, 2, prefix="group")  # talks to nobody yet
    for make, error, text in (
        (lambda: leafpack.Group.from_url(f"file://{tmp_path}/meet"), ValueError, "must be given"),
        (lambda: leafpack.Group.from_url("tcp://127.0.0.1:1", 2, 2), ValueError, "rank 2 is not in"),
        (lambda: leafpack.Group.from_url("file:///tmp/x", 0), ValueError, "size .* must be given too: .*rank 0"),
        (lambda: leafpack.Group.from_url("file:///tmp/x", -1, 2), ValueError, "rank .* must be given, 0 to 1"),
        (
            lambda: leafpack.Group.from_store(store, 0, 2, prefix="x", backend="gl\0ue"),
            ValueError,
            r"'gl\\000ue'.*gloo",
        ),
        (lambda: leafpack.Group.from_file(tmp_path, 0, 2), ValueError, "no regular file"),
        (
            lambda: leafpack.Group.from_store(store, 0, 2, prefix="x", backend="glue"),
            ValueError,
            "'glue'.*gloo",
        ),
        (lambda: group.new_group([0, 1], backend="glue"), ValueError, "'glue'.*gloo"),
        (lambda: group.new_group([0, 0]), ValueError, "rank 0 stands twice"),
        (lambda: group.new_group([1, 1]), ValueError, "rank 1 stands twice"),
        (lambda: group.new_group([0, 2]), ValueError, "rank 2 is not in"),
        (lambda: group.new_group([0, 0], backend="gloo"), ValueError, "rank 0 stands twice"),
        (lambda: group.new_group([0, 1 << 40]), ValueError, "32 bits"),
    ):
        with pytest.raises(error, match=text) as caught:
            make()
        assert not isinstance(caught.value, leafpack.PeerLostError)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(leafpack.UnavailableError, match=str(taken.getsockname()[1])):
            leafpack.Group.from_url(f"tcp://127.0.0.1:{taken.getsockname()[1]}", 0, 2, timeout=20)
    assert os.listdir(tmp_path) == []


def test_a_store_that_dies_before_the_ranks_have_met():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = server.port
    client = dist.TCPStore("127.0.0.1", port, is_master=False)
    group = leafpack.Group.from_store(client, 1, 2, prefix="group", timeout=4)
    del server
    with pytest.raises(leafpack.UnavailableError, match=f"barrier on rank 1: .*store.*127.0.0.1:{port}"):
        leafpack.barrier(group=group)


@sizes
def test_shutdown_with_work_that_never_ends(numel):
    spawn.succeed("shutdown_with_work", arguments=[numel, 0.5])


@sizes
def test_shutdown_drains_what_is_in_flight(numel):
    spawn.succeed("shutdown_drains", size=3, arguments=[numel])
