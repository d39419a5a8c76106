"""Writes the seeds of whole files: what leafpack, tensordict and safetensors write, as archives (files.h) and files.

    python make_seeds.py FOLDER        # with leafpack, tensordict and safetensors installed
"""

import pathlib
import sys
import tempfile

import safetensors.torch
import tensordict
import torch

import leafpack


def small():
    return {
        "obs": {"x": torch.arange(6, dtype=torch.float32).view(2, 3), "mask": torch.tensor([True, False])},
        "n": torch.tensor([1, -2], dtype=torch.int16),
        "empty": torch.ones(2, 0),
    }


def dtypes():
    names = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 float8_e4m3fn float8_e5m2 complex64"
    return {name: torch.ones(2).to(getattr(torch, name)) for name in names.split()}


def archive(folder):
    parts = []
    for path in sorted(pathlib.Path(folder).rglob("*"), key=lambda path: (path.suffix != ".json", str(path))):
        if path.is_file():
            parts.append(b"@" + str(path.relative_to(folder)).encode() + b"\n" + path.read_bytes())
    return b"\n".join(parts)


def memmap_trees():
    ours, theirs = leafpack.TensorDict, tensordict.TensorDict
    for name, kind in (("leafpack", ours), ("tensordict", theirs)):
        yield name + "_small", kind(small(), batch_size=[2])
        yield name + "_dtypes", kind(dtypes(), batch_size=[2])
        tree = kind({"a": {"b": {"c": torch.tensor(1.0)}}, "a/b": torch.ones(1), ".": torch.ones(1)}, batch_size=[])
        tree["text"], tree["number"] = "hé", 1.5
        tree.set_non_tensor("list", [1, [True, None], "x"])
        yield name + "_values", tree
        tree = kind(small(), batch_size=[2])
        tree.names = ["time"]
        yield name + "_names", tree
        stack = (leafpack.LazyStack if kind is ours else tensordict.LazyStackedTensorDict)(
            kind({"a": torch.ones(2, 3)}, batch_size=[2]), kind({"a": torch.ones(2, 4)}, batch_size=[2]), stack_dim=1
        )
        yield name + "_stack", stack
        tree = kind({"x": torch.zeros(2)}, batch_size=[2])
        tree["agents"] = stack
        yield name + "_stack_below", tree
    yield "tensordict_non_tensor_stack", torch.stack([theirs({"s": "a"}), theirs({"s": "b"})])


def main(target):
    target = pathlib.Path(target)
    for name, tree in memmap_trees():
        with tempfile.TemporaryDirectory() as folder:
            tree.memmap(folder + "/t")
            (target / "memmap" / name).write_bytes(archive(folder + "/t"))
    out = target / "safetensors"
    for name, leaves in (("small", small()), ("dtypes", dtypes())):
        flat = leafpack.TensorDict(leaves).flatten_keys(".").to_dict()
        leafpack.save_safetensors(leaves, out / f"leafpack_{name}", metadata={"format": "pt"})
        safetensors.torch.save_file(flat, out / f"safetensors_{name}", metadata={"format": "pt"})
    leafpack.save_safetensors({"a": {"": torch.tensor(2.5)}, "b": torch.ones(3, 1, dtype=torch.uint8)}, out / "paths")
    leafpack.save_safetensors({}, out / "nothing")


if __name__ == "__main__":
    main(sys.argv[1])
