"""Runs a function of programs.py as several ranks, each a process of its own, and returns how they ended."""

import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAMS = pathlib.Path(__file__).with_name("programs.py")


@dataclasses.dataclass
class Ended:
    code: int  # exit code; minus the signal that ended it
    out: str
    err: str
    seconds: float


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(program, size=2, *, arguments=(), timeout=180):
    """Starts `program` on ranks 0 .. size - 1; all must end by `timeout` (seconds), or all are killed."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(program, size, arguments, timeout, folder)


def _run(program, size, arguments, timeout, folder):
    # Python may have been told not to look beside the program (PYTHONSAFEPATH).
    path = os.pathsep.join(filter(None, [str(PROGRAMS.parent), os.environ.get("PYTHONPATH")]))
    environment = dict(
        os.environ,
        PYTHONPATH=path,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(_free_port()),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        OMP_NUM_THREADS="1",
        RANKS_FOLDER=folder,  # private to these ranks
    )
    started = time.monotonic()
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAMS), program, *map(str, arguments)],
            env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    ended = []
    try:
        for process in processes:
            left = started + timeout - time.monotonic()
            out, err = process.communicate(timeout=max(0.1, left))
            ended.append(Ended(process.returncode, out, err, time.monotonic() - started))
    except subprocess.TimeoutExpired:
        texts = []
        for rank, process in enumerate(processes):
            process.send_signal(signal.SIGABRT)  # faulthandler shows where it stood
            try:
                _, err = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                _, err = process.communicate()
            texts.append(f"--- rank {rank} ({process.returncode})\n{err}")
        raise AssertionError(
            f"{program} was not over after {timeout} s\n" + "\n".join(texts)
        ) from None
    return ended


def succeed(program, size=2, **arguments):
    """Runs `program`; every rank must exit with 0. Returns what each wrote to its standard output."""
    ended = run(program, size, **arguments)
    for rank, end in enumerate(ended):
        assert end.code == 0, f"rank {rank} ended with {end.code}:\n{end.out}\n{end.err}"
    return [end.out for end in ended]
