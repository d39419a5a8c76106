"""The rank in Python: README.md says what it does."""

import os
import pathlib

import torch

import leafpack


def fractions(rank, sizes, dtype, divisor):
    numel = torch.Size(sizes).numel()
    divisors = torch.arange(divisor, divisor + numel, dtype=dtype)
    return (torch.tensor(rank + 1, dtype=dtype) / divisors).reshape(sizes)


def make_tree(rank, biases):
    return {
        "encoder": {
            "weight": fractions(rank, (2, 3), torch.float32, 3),
            "bias": fractions(rank, (biases,), torch.float64, 7),
        },
        "layers": [torch.tensor(rank + 1)],
        "large": fractions(rank, (100_000,), torch.float32, 3),
    }


def main():
    torch.set_num_threads(1)
    group = leafpack.Group.from_environment()
    rank = group.rank
    folder = pathlib.Path(os.environ["TEST_TMPDIR"])

    tree = make_tree(rank, 4)
    leafpack.all_reduce(tree, group=group)
    leaves = (tree["encoder"]["bias"], tree["encoder"]["weight"], tree["large"], tree["layers"][0])
    (folder / f"result.{rank}").write_bytes(b"".join(leaf.numpy().tobytes() for leaf in leaves))

    try:
        leafpack.all_reduce(make_tree(rank, 5 if rank == 1 else 4), group=group)
    except leafpack.LayoutMismatchError as error:
        assert error.path == "encoder.bias", error.path
        (folder / f"error.{rank}").write_text(f"{error}\n")
    else:
        raise AssertionError("the ranks disagreed, and nobody said so")

    sent = None
    if rank == 0:
        weight = fractions(0, (2, 3), torch.float32, 3)
        sent = {"encoder": {"weight": weight}, "step": 7, "note": "from rank 0"}
    got = leafpack.broadcast(sent, src=0, group=group)
    assert got["encoder"]["weight"].equal(fractions(0, (2, 3), torch.float32, 3)), got
    assert got["step"] == 7 and got["note"] == "from rank 0", got

    leafpack.barrier(group=group)
    group.shutdown()


if __name__ == "__main__":
    main()
