"""Ranks of a test on two hosts: the first has two of three ranks; all know the name of the backend."""

import os
import socket

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert os.environ["LEAFPACK_BACKEND"] == "some"
place = [int(os.environ[name]) for name in ("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
if ranks == 1:
    assert place == [0, 1, 0, 1], place
else:
    assert place == [[0, 2, 0, 2], [0, 2, 1, 2], [1, 2, 0, 1]][rank], place
    assert socket.gethostname() == f"host{place[0]}"
    assert os.environ["MASTER_ADDR"] == "10.77.0.1"
