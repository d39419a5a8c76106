"""Trains a small net on hand-written digits, data parallel on local ranks, with tensordict and leafpack.

    bazel run //examples/python:digits -- --ranks 4 --epochs 10
    python digits.py --data ../data/digits.csv          # with the wheel, torch and tensordict
    torchrun --nproc-per-node 2 digits.py --data ../data/digits.csv

Each rank computes the gradients of its part of every batch; one leafpack.all_reduce of the tree of
gradients averages them. At the end the program proves that all ranks hold the same weights to the bit
and that one process with the same batches comes to the same weights, and shows where the time went.
"""

import argparse
import collections
import datetime
import os
import pathlib
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from tensordict import TensorDict

import leafpack


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4, help="number of local ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="images of one step, over all ranks")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bucketing", default="auto", help="auto, per_leaf, or a number of bytes")
    parser.add_argument("--data", type=pathlib.Path, default=None, help="the file of images")
    parser.add_argument("--min-accuracy", type=float, default=0.95)
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-9,
        help="largest difference of a weight from the training in one process: sums over a batch are "
        "taken in another order there, so the last bits differ",
    )
    arguments = parser.parse_args()
    if arguments.data is None:
        runfiles = os.environ.get("RUNFILES_DIR")
        here = (
            pathlib.Path(runfiles, "leafpack/examples")
            if runfiles
            else pathlib.Path(__file__).parent.parent
        )
        arguments.data = here / "data" / "digits.csv"
    if arguments.bucketing == "auto":
        arguments.bucket_bytes = "auto"
    elif arguments.bucketing == "per_leaf":
        arguments.bucket_bytes = None
    else:
        arguments.bucket_bytes = int(arguments.bucketing)
    return arguments


def read_digits(path):
    """Returns images (float64 [n, 64], 0 to 1) and labels to learn from, and the same held out."""
    rows = torch.tensor(
        [[int(cell) for cell in line.split(",")] for line in path.read_text().splitlines()]
    )
    pixels, labels = rows[:, :-1].double() / 16, rows[:, -1]
    held_out = torch.arange(len(rows)) % 5 == 4
    return (pixels[~held_out], labels[~held_out]), (pixels[held_out], labels[held_out])


def make_net(seed):
    """In float64: in float32 a last bit that differs may, over some hundred steps, grow to 1e-3."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 10),
    ).double()
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return net


def share(n, rank, ranks):
    """The part of range(n) that belongs to a rank; parts differ by one element at most."""
    return slice(n * rank // ranks, n * (rank + 1) // ranks)


def train(digits, arguments, rank, ranks, quiet=False):
    """Returns the trained net, its held-out accuracy, and where the time went, in seconds."""
    (pixels, labels), (held_out_pixels, held_out_labels) = digits
    net = make_net(arguments.seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=arguments.rate, momentum=0.9)
    # The tree {layer: {weight, bias}} of gradients: the same tensors for the whole training.
    gradients = TensorDict.from_module(net).apply(lambda parameter: parameter.grad)
    times = collections.Counter()
    stats = {}
    started = time.perf_counter()
    accuracy = 0.0
    for epoch in range(arguments.epochs):
        generator = torch.Generator().manual_seed(arguments.seed * 1000 + epoch)
        order = torch.randperm(len(labels), generator=generator)
        scores = {
            "loss": torch.zeros((), dtype=torch.float64),
            "correct": torch.zeros((), dtype=torch.float64),
        }
        epoch_started = time.perf_counter()
        for first in range(0, len(labels) - arguments.batch + 1, arguments.batch):
            step_started = time.perf_counter()
            chosen = order[first : first + arguments.batch][share(arguments.batch, rank, ranks)]
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(
                net(pixels[chosen]), labels[chosen], reduction="sum"
            )
            # Shares may differ in size: with this factor the average over ranks is the batch's mean.
            (loss * (ranks / arguments.batch)).backward()
            scores["loss"] += loss.item()
            computed = time.perf_counter()
            if ranks > 1:
                leafpack.all_reduce(
                    gradients,
                    "avg",
                    bucket_bytes=arguments.bucket_bytes,
                    name="gradients",
                    stats=stats,
                )
                for phase in ("prepare", "agree", "pack", "communicate", "unpack"):
                    times[phase] += stats[phase]
            averaged = time.perf_counter()
            optimizer.step()
            times["compute"] += computed - step_started + time.perf_counter() - averaged
            times["all_reduce"] += averaged - computed
        mine = share(len(held_out_labels), rank, ranks)
        with torch.no_grad():
            answers = net(held_out_pixels[mine]).argmax(1)
        scores["correct"] += (answers == held_out_labels[mine]).sum()
        if ranks > 1:
            leafpack.all_reduce(scores, name="scores")
        accuracy = scores["correct"].item() / len(held_out_labels)
        if rank == 0 and not quiet:
            seen = len(labels) // arguments.batch * arguments.batch
            print(
                f"epoch {epoch + 1:2} of {arguments.epochs}: loss {scores['loss'].item() / seen:.4f}, "
                f"held-out accuracy {100 * accuracy:.2f} %, {time.perf_counter() - epoch_started:.2f} s",
                flush=True,
            )
    times["total"] = time.perf_counter() - started
    return net, accuracy, times


def check_equal_on_all_ranks(net):
    """Raises if any rank holds another bit."""
    bits = {name: p.detach().view(torch.int64) for name, p in net.named_parameters()}
    for op in ("min", "max"):
        reduced = {name: leaf.clone() for name, leaf in bits.items()}
        leafpack.all_reduce(reduced, op, name="weights")
        for name, leaf in bits.items():
            if not torch.equal(reduced[name], leaf):
                raise AssertionError(f"the ranks hold different bits in {name}")


def run_rank(arguments):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    digits = read_digits(arguments.data)
    if rank == 0:
        print(
            f"{len(digits[0][1])} images to learn from, {len(digits[1][1])} held out, {ranks} ranks"
        )
    net, accuracy, times = train(digits, arguments, rank, ranks)
    check_equal_on_all_ranks(net)
    dist.barrier()
    dist.destroy_process_group()
    if rank != 0:
        return
    print(f"all {ranks} ranks hold equal weights, to the bit")
    alone, alone_accuracy, _ = train(digits, arguments, 0, 1, quiet=True)
    difference = max(
        (a - b).abs().max().item()
        for a, b in zip(net.parameters(), alone.parameters(), strict=True)
    )
    print(
        f"one process with the same batches: held-out accuracy {100 * alone_accuracy:.2f} %; weights "
        f"differ by {difference:.2g} at most (tolerance {arguments.tolerance:g})"
    )
    print("where the time went (rank 0):")
    for phase in ("compute", "all_reduce", "total"):
        print(
            f"  {phase:12} {1e3 * times[phase]:8.1f} ms  {100 * times[phase] / times['total']:5.1f} %"
        )
        if phase == "all_reduce":
            for part in ("prepare", "agree", "pack", "communicate", "unpack"):
                print(f"    {part:10} {1e3 * times[part]:8.1f} ms")
    if not difference <= arguments.tolerance:
        raise AssertionError(f"the weights differ by {difference} from those of one process")
    if not accuracy >= arguments.min_accuracy:
        raise AssertionError(f"the held-out accuracy is {accuracy}, below {arguments.min_accuracy}")


def start_ranks(arguments):
    """Starts this program on each rank; the first that fails ends all."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(
        os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(arguments.ranks)
    )
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:]],
            env=dict(environment, RANK=str(rank), LOCAL_RANK=str(rank)),
        )
        for rank in range(arguments.ranks)
    ]
    try:
        running = dict(enumerate(processes))
        while running:
            for rank, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[rank]
                if process.returncode != 0:
                    sys.exit(f"rank {rank} ended with {process.returncode}")
            time.sleep(0.05)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()


if __name__ == "__main__":
    options = parse_arguments()
    if "RANK" in os.environ:
        run_rank(options)
    else:
        start_ranks(options)
