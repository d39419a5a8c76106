"""Files of trees that were damaged: each is read, or refused with an error that names the file. Never a crash.

Mutations are drawn from a seed, so a failure can be repeated; the round that fails is printed. LEAFPACK_ROUNDS=100000
makes a long run of it.
"""

import json
import os
import pathlib
import random
import shutil
import struct

import pytest
import torch

import leafpack
from leafpack import TensorDict

ROUNDS = int(os.environ.get("LEAFPACK_ROUNDS", "500"))
WORDS = [
    b"0", b"-1", b"9223372036854775807", b"18446744073709551616", b"1e400", b"null", b"true", b'""', b"[]", b"{}",
    b'"F32"', b'"U8"', b'"F8_E4M3"', b'"shape"', b'"data_offsets"', b'"dtype"', b"__metadata__", b"[0,0]", b"[1,2]",
    b'"torch.float32"', b'"torch.int64"', b"\\u0000", b"\\ud800", b"\xff\xfe", b"[" * 600, b"{\"a\":" * 600, b",", b":",
    b'"../../x"', b'"a/b"', b'"is_nested"', b'"shape":[4294967296,4294967296]',
]  # fmt: skip


def _tree():
    return TensorDict(
        {
            "w": torch.arange(12.0).reshape(4, 3),
            "in": {"i": torch.arange(4, dtype=torch.int16), "h": torch.ones(4, 2, dtype=torch.bfloat16)},
            "flag": torch.ones(4, dtype=torch.bool),
            "none": torch.ones(4, 0),
        },
        [4],
    )


def _mutated(data, draw):
    """Between one and four changes: bytes, bits, pieces cut out, doubled or moved, words, a new length."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        size = len(data)
        at = draw.randrange(size) if size else 0
        # What is in front decides what the rest means.
        if draw.random() < 0.5:
            at = min(at, draw.randrange(400))
        length = draw.choice((1, 2, 8, 33))
        what = draw.randrange(8)
        if what == 0 and size:
            data[at] ^= 1 << draw.randrange(8)
        elif what == 1 and size:
            data[at] = draw.randrange(256)
        elif what == 2:
            del data[at : at + length]
        elif what == 3:
            data[at:at] = data[at : at + length]
        elif what == 4:
            data[at:at] = draw.choice(WORDS)
        elif what == 5:
            word = draw.choice(WORDS)
            data[at : at + len(word)] = word
        elif what == 6:
            del data[at:]
        else:
            numbers = (0, 1, 8, size, size - 8, 2**31, 2**32, 2**63, 2**64 - 1)
            data[:8] = struct.pack("<Q", draw.choice(numbers) % 2**64)
    return bytes(data)


def _touch(tree):
    """Reads every byte of every leaf."""
    for leaf in tree.values(True, True):
        if isinstance(leaf, torch.Tensor):
            leaf.contiguous().view(torch.uint8 if leaf.dim() and leaf.numel() else leaf.dtype).sum()
    tree.clone().layout_digest()


def _check(read, name, what):
    try:
        tree = read()
    except (ValueError, KeyError, TypeError, NotImplementedError, OSError) as error:
        assert name in str(error), f"{what}: the error does not name the file: {error!r}"
        return False
    _touch(tree)
    return True


@pytest.mark.parametrize("memory_map", (True, False))
def test_safetensors(tmp_path, memory_map):
    good = tmp_path / "good"
    leafpack.save_safetensors(_tree(), good, metadata={"key": "value"})
    data = good.read_bytes()
    path = tmp_path / "damaged.safetensors"
    refused = 0
    for i in range(ROUNDS):
        path.write_bytes(_mutated(data, random.Random(i)))
        refused += not _check(
            lambda: leafpack.load_safetensors(path, memory_map=memory_map), path.name, f"round {i}"
        )
    assert refused > ROUNDS // 4
    assert leafpack.load_safetensors(good).equal(leafpack.load_safetensors(good, memory_map=False))


def test_safetensors_headers(tmp_path):
    """The header alone, with a length that fits, so that mutations reach what stands in it."""
    good = tmp_path / "good"
    leafpack.save_safetensors(_tree(), good)
    data = good.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    path = tmp_path / "damaged.safetensors"
    refused = 0
    for i in range(ROUNDS):
        header = _mutated(data[8 : 8 + size], random.Random(i))
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
        refused += not _check(lambda: leafpack.load_safetensors(path), path.name, f"round {i}")
    assert refused > ROUNDS // 2


def test_memory_mapped_folders(tmp_path):
    good = tmp_path / "good"
    tree = _tree()
    tree["note"] = "text"
    tree["in", "count"] = 3
    tree.memmap(good)
    files = sorted(p.relative_to(good) for p in good.rglob("*") if p.is_file())
    assert json.loads((good / "meta.json").read_text())
    folder = tmp_path / "damaged"
    refused = 0
    for i in range(ROUNDS):
        draw = random.Random(i)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, folder)
        # Mostly what describes the others.
        descriptions = [f for f in files if f.suffix == ".json"]
        damaged = folder / draw.choice(descriptions if draw.random() < 0.8 else files)
        if draw.random() < 0.05:
            damaged.unlink()
        else:
            damaged.write_bytes(_mutated(damaged.read_bytes(), draw))
        mode = draw.choice(("r", "r+"))
        refused += not _check(lambda: TensorDict.load_memmap(folder, mode=mode), folder.name, f"round {i}")
    assert refused > ROUNDS // 4
    assert TensorDict.load_memmap(good)["w"].equal(tree["w"])


def test_deep_and_long_files(tmp_path):
    path = tmp_path / "deep.safetensors"
    for header in (b"[" * 10**6, b'{"a":' * 10**6, b"{" + b'"k' * 10**6, b'{"' + b"a." * 10**6 + b'":{}}'):
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        with pytest.raises(ValueError, match="deep"):
            leafpack.load_safetensors(path)
    folder = pathlib.Path(tmp_path / "deep")
    folder.mkdir()
    (folder / "meta.json").write_bytes(b'{"a":' * 10**6)
    with pytest.raises(ValueError, match="deep"):
        TensorDict.load_memmap(folder)


def test_a_pipe_is_refused(tmp_path):
    """Opening one waits for a writer unless it is asked not to."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe.*no regular file"):
        leafpack.load_safetensors(tmp_path / "pipe")
    TensorDict({"x": torch.ones(2)}).memmap(tmp_path / "m")
    (tmp_path / "m" / "x.memmap").unlink()
    os.mkfifo(tmp_path / "m" / "x.memmap")
    with pytest.raises(ValueError, match="no regular file"):
        TensorDict.load_memmap(tmp_path / "m")
