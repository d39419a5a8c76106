"""`leafpack doctor`: what is installed, how ranks on this host reach each other, and how fast.

Starts a small run of processes on this host; each case has a deadline.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

from leafpack._version import __version__

_BYTES = (4, 4096, 65536, 1 << 20, 1 << 24)
# How the ranks of this host reach each other over each backend.
_HOW = {"shm": "the ranks share memory", "socket": "over Unix sockets", "gloo": "over TCP"}
_BACKENDS = tuple(_HOW)
# Those that torch.distributed runs on; a group of leafpack's own runs on the others.
_OF_TORCH = ("shm", "gloo")


def add_parser(commands) -> None:
    """Adds the command to `leafpack`'s."""
    parser = commands.add_parser(
        "doctor",
        help="show versions, backends, and how fast ranks on this host reach each other",
        description="Shows versions and backends, then starts ranks on this host and measures all_reduce.",
    )
    parser.add_argument("--ranks", type=_ranks, default=2, help="processes to start (default: 2)")
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds for each backend (default: 60)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def _ranks(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"must be a number of at least 2, not {text!r}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; 0 if every backend worked and none fell back, else 1."""
    report = {"versions": _versions(), "cores": len(os.sched_getaffinity(0)), "ranks": arguments.ranks}
    report["backends"] = {
        backend: _try(backend, arguments.ranks, arguments.timeout) for backend in _BACKENDS
    }
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print(_text(report))
    well = all("error" not in r and "fell_back" not in r for r in report["backends"].values())
    return 0 if well else 1


def _versions() -> dict:
    import torch

    versions = {"leafpack": __version__, "torch": torch.__version__}
    versions["python"] = platform.python_version()
    versions["kernel"] = f"{platform.system()} {platform.release()} {platform.machine()}"
    return versions


def _try(backend: str, ranks: int, timeout: float) -> dict:
    """What `ranks` processes found with `backend`: "us" by bytes, "fell_back" or "error"."""
    program = "import sys; from leafpack import _doctor; _doctor.rank_main(*sys.argv[1:])"
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", program, backend, str(rank), str(ranks), meeting, str(timeout)],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        deadline = time.monotonic() + timeout
        outputs = []
        try:
            for process in processes:
                outputs.append(process.communicate(timeout=max(0.1, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            return {"error": f"rank {len(outputs)} was not ready after {timeout:g} s"}
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            lines = outputs[rank][1].strip().splitlines() or ["no message"]
            return {"error": f"rank {rank} ended with {process.returncode}: {lines[-1]}"}
    return json.loads(outputs[0][0].splitlines()[-1])


def rank_main(backend: str, rank: str, size: str, meeting: str, timeout: str) -> None:
    """One rank of the run; rank 0 writes a line of JSON."""
    import datetime
    import logging

    import torch
    import torch.distributed as dist

    import leafpack

    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("leafpack").addHandler(handler)
    torch.set_num_threads(1)
    of_torch = backend in _OF_TORCH
    dist.init_process_group(
        backend if of_torch else "gloo",
        init_method="file://" + meeting,
        rank=int(rank),
        world_size=int(size),
        timeout=datetime.timedelta(seconds=float(timeout)),
    )
    group = None
    if not of_torch:
        group = leafpack.Group.from_file(
            meeting + ".group", int(rank), int(size), backend=backend, timeout=float(timeout)
        )
    micros = {}
    for count in _BYTES:
        tensor = torch.zeros(count // 4)
        repeats = max(3, min(100, (1 << 23) // count))
        rounds = []
        for _ in range(5):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(repeats):
                if group is None:
                    dist.all_reduce(tensor)
                else:
                    leafpack.all_reduce([tensor], group=group)
            rounds.append((time.perf_counter() - start) / repeats * 1e6)
        micros[count] = round(sorted(rounds)[2], 1)
    found: dict = {"us": micros}
    if told:
        found["fell_back"] = told[0]
    dist.barrier()
    dist.destroy_process_group()
    if rank == "0":
        print(json.dumps(found))


def _text(report: dict) -> str:
    lines = [f"{name:9} {version}" for name, version in report["versions"].items()]
    lines.append(f"{'cores':9} {report['cores']}, for {report['ranks']} ranks")
    for backend, found in report["backends"].items():
        lines.append("")
        if "error" in found:
            lines.append(f"{backend}: does not work: {found['error']}")
            continue
        how = found.get("fell_back", _HOW.get(backend, ""))
        lines.append(f"{backend}: {how}; all_reduce, median:")
        for count, micros in found["us"].items():
            rate = int(count) / micros / 1e3 if micros else 0.0
            lines.append(f"  {int(count):9} B  {micros:10.1f} us  {rate:7.3f} GB/s")
    return "\n".join(lines)
