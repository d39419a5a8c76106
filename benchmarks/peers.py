"""All-reduce of one tree by leafpack and its peers, interleaved in one run.

    ./bazelw run //benchmarks:peers -- --ranks 2 --rounds 11 mobilenet-v2 resnet50

or by a Python that has torch, tensordict and leafpack's wheel.

Peers: tensordict's all_reduce (per leaf, async, with caps), c10d's coalesced call, and one flat
all_reduce of the same bytes, which is what the transport allows. "local add_" is every rank adding one
flat buffer to another at the same time: what memory allows. Prints medians and the ratio to the flat
call; --json prints one object a workload.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
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

FLAT = "flat c10d"


def find_workload(name):
    here = os.path.dirname(os.path.abspath(__file__))
    caller = os.environ.get("BUILD_WORKING_DIRECTORY", "")
    for path in (os.path.join(here, "workloads", name + ".json"), name, os.path.join(caller, name)):
        if os.path.isfile(path):
            return os.path.abspath(path)
    raise SystemExit(f"no workload '{name}': neither a model in benchmarks/workloads nor a file")


def make_tree(workload, seed):
    generator = torch.Generator().manual_seed(seed)
    leaves = {}
    for leaf in workload["leaves"]:
        dtype = getattr(torch, leaf["dtype"])
        if dtype.is_floating_point:
            leaves[leaf["key"]] = torch.rand(leaf["shape"], generator=generator).to(dtype)
        else:
            leaves[leaf["key"]] = torch.ones(leaf["shape"], dtype=dtype)
    return TensorDict(leaves).unflatten_keys(".")


def run(rank, world, files, rounds, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for file in files:
        with open(file) as stream:
            workload = json.load(stream)
        tree = make_tree(workload, rank)
        leaves = list(tree.values(include_nested=True, leaves_only=True))
        nbytes = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        flat, other = torch.rand(nbytes // 4), torch.rand(nbytes // 4)
        by_dtype = {}
        for leaf in leaves:
            by_dtype.setdefault(leaf.dtype, []).append(leaf)

        def coalesced():
            for tensors in by_dtype.values():
                options = torch._C._distributed_c10d.AllreduceCoalescedOptions()
                dist.group.WORLD.allreduce_coalesced(tensors, options).wait()

        modes = {
            "tensordict per leaf": lambda: tree.all_reduce(),
            "tensordict async": lambda: [work.wait() for work in tree.all_reduce(async_op=True)],
            "tensordict 1 MiB": lambda: tree.all_reduce(bucket_bytes=1 << 20),
            "tensordict 25 MiB": lambda: tree.all_reduce(bucket_bytes=25 << 20),
            "c10d coalesced": coalesced,
            FLAT: lambda: dist.all_reduce(flat),
            "local add_": lambda: flat.add_(other),
        }
        if leafpack is not None:
            modes["leafpack auto"] = lambda: leafpack.all_reduce(tree)
            modes["leafpack async"] = lambda: leafpack.all_reduce(tree, async_op=True).wait()
            modes["leafpack 25 MiB"] = lambda: leafpack.all_reduce(tree, bucket_bytes=25 << 20)
        times = {name: [] for name in modes}
        names = list(modes)
        for index in range(rounds + 1):  # the first round warms up
            shift = index % len(names)
            for name in names[shift:] + names[:shift]:
                for leaf in leaves:
                    if leaf.is_floating_point():
                        leaf.mul_(0.5)
                flat.fill_(rank + 1.0)
                dist.barrier()
                start = time.perf_counter()
                modes[name]()
                if index > 0:
                    times[name].append(time.perf_counter() - start)
        if rank == 0:
            ratios = {
                name: statistics.median(t / f for t, f in zip(values, times[FLAT]))
                for name, values in times.items()
            }
            result = {
                "workload": workload["name"],
                "ranks": world,
                "leaves": len(leaves),
                "bytes": nbytes,
                "median_s": {name: statistics.median(values) for name, values in times.items()},
                "ratio_to_flat": ratios,
            }
            with open(out, "a") as stream:
                stream.write(json.dumps(result) + "\n")
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
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    files = [find_workload(name) for name in arguments.workloads]
    if leafpack is None:
        print(f"leafpack is not among the modes: {WHY_NOT}")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "results")
        mp.start_processes(
            run,
            (arguments.ranks, files, arguments.rounds, free_port(), out),
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
            f"{result['workload']}: {result['leaves']} leaves, {result['bytes'] / 1e6:.1f} MB, "
            f"{result['ranks']} ranks"
        )
        for name, ratio in result["ratio_to_flat"].items():
            print(f"  {name:20s} {result['median_s'][name] * 1e3:10.2f} ms {ratio:8.3f} x flat")


if __name__ == "__main__":
    main()
