"""Averages the gradients of a model over all ranks:

./bazelw run //distributed/launch -- -n 4 -- $PWD/bazel-bin/examples/python/average
"""

import torch
import torch.distributed as dist

import leafpack


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

    # Any tree of tensors will do: a tensordict, a module, nested dicts and lists.
    gradients = {"encoder": {"weight": torch.full((2, 3), float(rank))}}

    work = leafpack.all_reduce(gradients, "avg", async_op=True)
    # ... other work; until the wait, nobody touches the gradients ...
    try:
        work.wait()
    except leafpack.Error as error:
        print(error, "it is about ranks", error.ranks)
        raise

    found, expected = gradients["encoder"]["weight"][0, 0].item(), (size - 1) / 2
    print(f"rank {rank} of {size}: {found}, expected {expected}")
    assert found == expected
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
