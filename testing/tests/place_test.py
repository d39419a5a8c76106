"""Ranks of a Python test know their place and reach each other."""

import os
import socket
import time


def _variable(name):
    return int(os.environ.get(name, -1))


def test_place_is_known():
    assert _variable("WORLD_SIZE") == 2
    assert _variable("RANK") in (0, 1)
    assert _variable("OF_ALL") == 3
    assert _variable("OF_RANK") == (7 if _variable("RANK") == 0 else -1)


def test_rank_0_is_reached():
    address = (os.environ["MASTER_ADDR"], _variable("MASTER_PORT"))
    if _variable("RANK") == 0:
        with socket.create_server(address) as server:
            server.settimeout(60)
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) == b"1"
        return
    until = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(address, timeout=60) as connection:
                connection.sendall(b"1")
            return
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.01)
