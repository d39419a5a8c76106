"""All-reduce of one leaf by leafpack, c10d over Gloo and MPICH, from 64 B to 64 MiB: a table and a plot.

    ./bazelw build //benchmarks:sizes
    python3 benchmarks/mpich/compare.py --sizes bazel-bin/benchmarks/sizes --plot docs/all_reduce_sizes.svg

Wants mpicc and mpiexec of MPICH, which the build of leafpack does not, and matplotlib for the plot. The
programs run in turn, so that what else the machine does meets all of them; the medians are over all turns.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import tempfile


def run(command):
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def measure(arguments, ranks):
    here = os.path.dirname(os.path.abspath(__file__))
    times = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        mpi = os.path.join(folder, "mpi_all_reduce")
        source = os.path.join(here, "mpi_all_reduce.c")
        subprocess.run([arguments.mpicc, "-O2", "-o", mpi, source], check=True)
        sizes = (str(arguments.least), str(arguments.most))
        for _ in range(arguments.turns):
            for command in (
                [arguments.sizes, f"--ranks={ranks}", f"--rounds={arguments.rounds}",
                 f"--least={sizes[0]}", f"--most={sizes[1]}"],
                [arguments.mpiexec, "-n", str(ranks), mpi, str(arguments.rounds), *sizes],
            ):
                for result in run(command):
                    times[result["mode"], result["bytes"]].append(result["median_s"])
    return {key: statistics.median(values) for key, values in times.items()}


def human(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"


def table(times, ranks):
    modes = list(dict.fromkeys(mode for mode, _ in times))
    lines = [f"| {ranks} ranks | " + " | ".join(f"{mode}, us" for mode in modes) + " | leafpack, shm to MPICH |"]
    lines.append("|---" * (len(modes) + 2) + "|")
    for size in sorted({size for _, size in times}):
        row = [times[mode, size] for mode in modes]
        ratio = times["leafpack, shm", size] / times["MPICH", size]
        lines.append(f"| {human(size)} | " + " | ".join(f"{t * 1e6:.3g}" for t in row) + f" | {ratio:.2f} |")
    return "\n".join(lines)


def plot(by_ranks, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "leafpack"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(by_ranks), figsize=(5.2 * len(by_ranks), 4.2), squeeze=False)
    for axis, (ranks, times) in zip(axes[0], by_ranks.items()):
        for mode in dict.fromkeys(mode for mode, _ in times):
            points = sorted((size, time) for (other, size), time in times.items() if other == mode)
            axis.loglog([size for size, _ in points], [t * 1e6 for _, t in points], marker="o", ms=3, label=mode)
        axis.set(title=f"all_reduce of one leaf, {ranks} ranks", xlabel="bytes", ylabel="microseconds a call")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", required=True, help="the program //benchmarks:sizes")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--least", type=int, default=64)
    parser.add_argument("--most", type=int, default=64 << 20)
    parser.add_argument("--plot", help="the file to draw into (SVG)")
    parser.add_argument("--mpicc", default="mpicc")
    parser.add_argument("--mpiexec", default="mpiexec")
    arguments = parser.parse_args()
    by_ranks = {ranks: measure(arguments, ranks) for ranks in map(int, arguments.ranks.split(","))}
    for ranks, times in by_ranks.items():
        print(table(times, ranks), end="\n\n")
    if arguments.plot:
        plot(by_ranks, arguments.plot)


if __name__ == "__main__":
    main()
