"""Collectives on one tree by leafpack and its peers, interleaved in one run.

    ./bazelw run //benchmarks:peers -- --ranks 2 --rounds 11 mobilenet-v2 resnet50
    ./bazelw run //benchmarks:peers -- --collectives broadcast,all_gather --backend shm 1000x4KiB

or by a Python that has torch, tensordict and leafpack's wheel. A workload is a model of
benchmarks/workloads, a file like those, or "1000x4KiB": so many float32 leaves of that size.

Peers: tensordict's own methods, and torch.distributed by hand (peer_modes.py). Of all_reduce: tensordict
per leaf, async and with caps, c10d's coalesced call, and one flat all_reduce of the same bytes, which is what the
transport allows. Each mode is checked once before it is timed. Prints medians over the rounds of the slowest
rank's time, and the median ratio to the mode that is named; --json prints one object a workload.
"""

import argparse
import functools
import json
import os
import random
import re
import socket
import statistics
import tempfile
import time
import types
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

warnings.filterwarnings("ignore")  # tensordict warns about torch internals on import
from tensordict import TensorDict  # noqa: E402

try:
    import leafpack
except ImportError as error:
    leafpack = None
    WHY_NOT = str(error)

import peer_modes  # noqa: E402

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def grid(name):
    """The workload "1000x4KiB", or None."""
    match = re.fullmatch(r"(\d+)x(\d+)(B|KiB|MiB)", name)
    if match is None:
        return None
    count, size = int(match[1]), int(match[2]) * UNITS[match[3]]
    leaves = [{"key": f"k{i}", "shape": [size // 4], "dtype": "float32"} for i in range(count)]
    return {"name": name, "leaves": leaves}


def find_workload(name):
    if grid(name) is not None:
        return name
    here = os.path.dirname(os.path.abspath(__file__))
    caller = os.environ.get("BUILD_WORKING_DIRECTORY", "")
    for path in (os.path.join(here, "workloads", name + ".json"), name, os.path.join(caller, name)):
        if os.path.isfile(path):
            return os.path.abspath(path)
    raise SystemExit(f"no workload '{name}': neither a model in benchmarks/workloads nor a file")


def load_workload(name):
    found = grid(name)
    if found is not None:
        return found
    with open(name) as stream:
        return json.load(stream)


def make_tree(workload):
    leaves = {
        leaf["key"]: torch.ones(leaf["shape"], dtype=getattr(torch, leaf["dtype"]))
        for leaf in workload["leaves"]
    }
    return TensorDict(leaves).unflatten_keys(".")


def refill(tree, rank):
    for leaf in peer_modes.leaves_of(tree):
        leaf.fill_(rank + 1)


def check(collective, name, result, rank, world):
    """Asserts that a mode gave what it should, on trees that hold their rank plus one."""
    if collective == "all_reduce":
        return
    expected = {
        "broadcast": [1],
        "send_recv": [1] if rank == 1 else [rank + 1],
        "scatter": [1],
        "all_gather": range(1, world + 1),
        "gather_and_stack": range(2, world + 1),
    }[collective]
    for value, tree in zip(expected, result):
        for leaf in peer_modes.leaves_of(tree):
            assert bool((leaf == value).all()), (collective, name, rank, value)


class OnGroup:
    """leafpack, with another group for its collectives than the default one."""

    _COLLECTIVES = {"all_reduce", "broadcast", "all_gather", "scatter", "gather_and_stack", "send", "recv"}

    def __init__(self, library, group):
        self._library = library
        self._group = group
        self._methods = types.SimpleNamespace(
            gather_and_stack=functools.partial(library._methods.gather_and_stack, group=group)
        )

    def __getattr__(self, name):
        value = getattr(self._library, name)
        return functools.partial(value, group=self._group) if name in self._COLLECTIVES else value


def measure(collective, workload, rank, world, rounds, meeting, leafpack):
    """`meeting` is a group that no mode uses: what meets in it wakes nobody's threads and sockets."""
    tree = make_tree(workload)
    leaves = peer_modes.leaves_of(tree)
    refill(tree, 0)  # what is scattered holds ones
    modes, base = peer_modes.COLLECTIVES[collective](tree, rank, world, leafpack)
    for name, mode in modes.items():
        refill(tree, rank)
        dist.barrier()
        check(collective, name, mode(), rank, world)
    times = {name: [] for name in modes}
    names = list(modes)
    order = random.Random(0)  # the same on all ranks
    for index in range(rounds + 1):  # the first round warms up
        # Where one mode always follows another of its library, it finds caches and connections warm.
        order.shuffle(names)
        for name in names:
            refill(tree, rank)
            dist.barrier(meeting)
            start = time.perf_counter()
            modes[name]()
            slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX, group=meeting)
            if index > 0:
                times[name].append(slowest.item())
    return {
        "collective": collective,
        "workload": workload["name"],
        "ranks": world,
        "leaves": len(leaves),
        "bytes": sum(leaf.numel() * leaf.element_size() for leaf in leaves),
        "median_s": {name: statistics.median(values) for name, values in times.items()},
        "base": base,
        "ratio_to_base": {
            name: statistics.median(t / b for t, b in zip(values, times[base]))
            for name, values in times.items()
        },
    }


def run(rank, world, collectives, names, rounds, backend, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    meeting = dist.new_group(list(range(world)))
    library = leafpack
    if leafpack is not None and backend != "gloo":
        library = OnGroup(leafpack, leafpack.Group.around().new_group(range(world), backend=backend))
    for name in names:
        for collective in collectives:
            result = measure(collective, load_workload(name), rank, world, rounds, meeting, library)
            if rank == 0:
                with open(out, "a") as stream:
                    stream.write(json.dumps(result) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("workloads", nargs="*", default=["mobilenet-v2", "resnet50", "whisper-tiny"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--collectives", default="all_reduce", help="separated by commas, or 'all'")
    parser.add_argument("--backend", default="gloo", help="of leafpack's modes: gloo, socket or shm")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = [find_workload(name) for name in arguments.workloads]
    collectives = list(peer_modes.COLLECTIVES)
    if arguments.collectives != "all":
        collectives = arguments.collectives.split(",")
    for collective in collectives:
        if collective not in peer_modes.COLLECTIVES:
            raise SystemExit(f"no collective '{collective}': {', '.join(peer_modes.COLLECTIVES)}")
    if leafpack is None:
        print(f"leafpack is not among the modes: {WHY_NOT}")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "results")
        mp.start_processes(
            run,
            (arguments.ranks, collectives, names, arguments.rounds, arguments.backend, free_port(), out),
            nprocs=arguments.ranks,
            start_method="spawn",
        )
        with open(out) as stream:
            results = [json.loads(line) for line in stream]
    for result in results:
        if arguments.json:
            print(json.dumps(result))
            continue
        print(
            f"{result['collective']} of {result['workload']}: {result['leaves']} leaves, "
            f"{result['bytes'] / 1e6:.1f} MB, {result['ranks']} ranks"
        )
        for name, ratio in result["ratio_to_base"].items():
            print(
                f"  {name:22s} {result['median_s'][name] * 1e3:10.2f} ms {ratio:8.3f} x "
                f"{result['base']}"
            )


if __name__ == "__main__":
    main()
