"""torch.distributed's collectives over its backend shm beside Gloo, interleaved in one run.

    ./bazelw run -c opt //benchmarks:torch_backends -- --ranks 2 --rounds 15

or by a Python that has torch and leafpack's wheel. Prints, for each collective and size, the median over the
rounds of rank 0's time over shm, and the median ratio to Gloo's in the same round.
"""

import argparse
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import leafpack  # noqa: F401  registers the backend

SIZES = [1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24]


def collectives(count, rank, size, group):
    """Calls by name, each moves `count` float32 a rank."""
    one, whole = torch.zeros(count), torch.zeros(count * size)
    other = torch.zeros(count * size)

    def ping_pong():
        if rank == 0:
            dist.send(one, 1, group=group)
            dist.recv(one, 1, group=group)
        elif rank == 1:
            dist.recv(one, 0, group=group)
            dist.send(one, 0, group=group)

    return {
        "all_reduce": lambda: dist.all_reduce(one, group=group),
        "broadcast": lambda: dist.broadcast(one, 0, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, one, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(one, whole, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(other, whole, group=group),
        "send and recv, both ways": ping_pong,
    }


def timed(call, repeats, group):
    dist.barrier(group=group)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def run(rank, size, port, rounds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    groups = {"shm": dist.new_group(backend="shm"), "gloo": dist.group.WORLD}
    for numbytes in SIZES:
        calls = {
            name: collectives(numbytes // 4, rank, size, group) for name, group in groups.items()
        }
        repeats = max(2, min(50, (1 << 22) // numbytes))
        for name in calls["shm"]:
            times = {backend: [] for backend in groups}
            for _ in range(rounds + 1):  # the first one warms up
                for backend, group in groups.items():
                    times[backend].append(timed(calls[backend][name], repeats, group))
            if rank == 0:
                ours = times["shm"][1:]
                ratio = statistics.median(a / b for a, b in zip(ours, times["gloo"][1:]))
                micros = statistics.median(ours) * 1e6
                print(f"{name:26} {numbytes:9} B  {micros:10.1f} us  {ratio:6.3f} of Gloo", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run, (arguments.ranks, port, arguments.rounds), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
