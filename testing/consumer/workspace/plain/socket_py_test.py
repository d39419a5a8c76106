"""Rank 1 sends a byte to rank 0 at the address that both were given; the standard library alone."""

import os
import socket
import sys
import time

address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        server.settimeout(60)
        connection, _ = server.accept()
        with connection:
            sys.exit(0 if connection.recv(1) == b"1" else "rank 1 sent something else")
until = time.monotonic() + 60
while True:
    try:
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(b"1")
        break
    except ConnectionRefusedError:
        if time.monotonic() > until:
            sys.exit("rank 0 does not listen")
        time.sleep(0.01)
