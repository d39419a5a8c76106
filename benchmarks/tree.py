"""What operations on a tree cost the host beyond the ATen calls: leafpack.TensorDict beside tensordict.TensorDict.

Trees of small leaves, ten to a node; the least of many interleaved rounds. From each time that of the same ATen calls
in a plain loop over a list, or in one _foreach_ call if that is less, is taken off; what is left is divided by the
number of leaves. Run it with real-time priority (chrt -r 1) on a machine that is busy.
"""

import argparse
import gc
import json
import time

import tensordict
import torch

import leafpack


def children(count):
    nodes = {}
    for i in range(count):
        nodes.setdefault(f"node{i // 10:03}", {})[f"leaf{i % 10}"] = torch.ones(4, 4)
    return nodes


# Name, the operation on a tree, the same ATen calls on a list of leaves (None: there are none), the aim.
OPERATIONS = [
    ("flatten_keys", lambda t, o: t.flatten_keys("."), None, 5),
    ("select", lambda t, o: t.select(*o["keys"]), None, 5),
    ("keys, nested", lambda t, o: list(t.keys(True, True)), None, 5),
    ("keys after a change", lambda t, o: list(_changed(t).keys(True, True)), None, 5),
    ("items, nested", lambda t, o: list(t.items(True, True)), None, 5),
    ("clone, same tensors", lambda t, o: t.clone(recurse=False), None, 5),
    ("index by position", lambda t, o: t[0], lambda x, y: [leaf[0] for leaf in x], 5),
    ("view", lambda t, o: t.view(2, 2), lambda x, y: [leaf.view(2, 2, 4) for leaf in x], 5),
    ("apply", lambda t, o: t.apply(_same), lambda x, y: [_same(leaf) for leaf in x], 3),
    ("clone", lambda t, o: t.clone(), lambda x, y: [leaf.clone() for leaf in x], 3),
    ("add a number", lambda t, o: t + 1, lambda x, y: torch._foreach_add(x, 1), 3),
    ("add a tree", lambda t, o: t + o["other"], lambda x, y: torch._foreach_add(x, y), 3),
    ("add_ a tree", lambda t, o: t.add_(o["other"]), lambda x, y: torch._foreach_add_(x, y), 3),
    ("to float64", lambda t, o: t.to(torch.float64), lambda x, y: [leaf.to(torch.float64) for leaf in x], 3),
    ("stack of two", lambda t, o: torch.stack([t, o["other"]]), lambda x, y: [torch.stack(p) for p in zip(x, y)], 3),
]  # fmt: skip


def _same(leaf):
    return leaf


def _changed(tree):
    """`tree`, which is as it was: but nothing that was known of its keys can be used."""
    tree.set("changed", tree["node000", "leaf0"])
    tree.del_("changed")
    return tree


def measure(functions, rounds):
    """The least time of each function, in seconds; rounds alternate."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    source, other = children(options.leaves), children(options.leaves)
    sides = []
    for kind in (leafpack.TensorDict, tensordict.TensorDict):
        keys = tuple((node, leaf) for node in source for leaf in source[node])[::2]
        sides.append((kind(source, [4]), {"other": kind(other, [4]), "keys": keys}))
    x = [leaf for node in source.values() for leaf in node.values()]
    y = [leaf for node in other.values() for leaf in node.values()]
    rows = []
    gc.disable()
    for name, run, aten, aim in OPERATIONS:
        functions = [lambda s=s: run(*s) for s in sides]
        if aten is not None:
            functions.append(lambda: aten(x, y))
        times = [1e9 * t / options.leaves for t in measure(functions, options.rounds)]
        calls = times[2] if aten is not None else 0.0
        net = [t - calls for t in times[:2]]
        ratio = net[1] / net[0] if net[0] > 0 else float("inf")
        rows.append({"operation": name, "ours": times[0], "tensordict": times[1], "aten": calls,
                     "net_ours": net[0], "net_tensordict": net[1], "ratio": ratio, "aim": aim})  # fmt: skip
        gc.collect()
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("nanoseconds a leaf; net of the ATen calls; ratio: tensordict's net overhead to ours")
    print(f"{'operation':22}{'ours':>8}{'tensordict':>12}{'ATen':>8}{'net':>8}{'net':>8}{'ratio':>8}{'aim':>5}")
    for row in rows:
        ratio = f"{row['ratio']:.1f}" if row["ratio"] != float("inf") else "no cost"
        print(
            f"{row['operation']:22}{row['ours']:8.0f}{row['tensordict']:12.0f}{row['aten']:8.0f}"
            f"{row['net_ours']:8.0f}{row['net_tensordict']:8.0f}{ratio:>8}{row['aim']:5}"
        )


if __name__ == "__main__":
    main()
