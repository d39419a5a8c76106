"""Paths that files are written to and read from: what is there and is no tree of ours is kept, and errors are Python's."""

import json
import os

import pytest
import torch

import leafpack
from leafpack import TensorDict


def _tree(value=1.0):
    return TensorDict({"x": torch.full((2,), value), "n": {"y": torch.ones(2, 3)}}, [2])


def _stack():
    return leafpack.lazy_stack([TensorDict({"x": torch.ones(2)}), TensorDict({"x": torch.ones(3)})])


@pytest.mark.parametrize("make", (_tree, _stack))
def test_memmap_keeps_what_is_no_tree(tmp_path, make):
    foreign = tmp_path / "foreign"
    (foreign / "sub").mkdir(parents=True)
    (foreign / "sub" / "precious.txt").write_text("x")
    (tmp_path / "file").write_text("y")
    (tmp_path / "astray").symlink_to("nothing")
    make().memmap(tmp_path / "old")
    (tmp_path / "old" / "notes.txt").write_text("z")
    before = sorted(tmp_path.rglob("*"))
    for name, text in (("foreign", "has sub,"), ("file", "no folder"), ("astray", "link to nothing"), ("old", "notes.txt")):
        with pytest.raises(FileExistsError, match=f"{name}: is .*{text}"):
            make().memmap(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before
    assert (foreign / "sub" / "precious.txt").read_text() == "x" and (tmp_path / "file").read_text() == "y"


@pytest.mark.parametrize("make", (_tree, _stack))
def test_memmap_replaces_trees_and_empty_folders(tmp_path, make):
    (tmp_path / "empty").mkdir()
    make().memmap(tmp_path / "empty")
    (tmp_path / "link").symlink_to("empty")
    for other in (_tree, _stack, make):
        other().memmap(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert type(TensorDict.load_memmap(tmp_path / "empty")) is type(other())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "link"]


def test_safetensors_keep_what_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "folder", "link"):
        with pytest.raises(FileExistsError, match=f"{name}: is there, is no regular file"):
            leafpack.save_safetensors(_tree(), tmp_path / name)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "folder").is_dir() and (tmp_path / "link").is_symlink()
    leafpack.save_safetensors(_tree(), tmp_path / "file")
    (tmp_path / "tofile").symlink_to("file")
    leafpack.save_safetensors(_tree(2.0), tmp_path / "tofile")
    assert (tmp_path / "tofile").is_symlink() and leafpack.load_safetensors(tmp_path / "file")["x"].tolist() == [2, 2]


def test_a_zero_byte_does_not_cut_a_path(tmp_path):
    _tree().memmap(tmp_path / "m")
    leafpack.save_safetensors(_tree(), tmp_path / "s")
    folder, file = f"{tmp_path}/m\0x", f"{tmp_path}/s\0x"
    calls = (
        lambda: _tree(2.0).memmap(folder),
        lambda: _tree(2.0).memmap(folder, existsok=False),
        lambda: _stack().memmap(folder),
        lambda: TensorDict.load_memmap(folder),
        lambda: leafpack.LazyStack.load_memmap(folder),
        lambda: _tree().load_memmap_(folder),
        lambda: leafpack.save_safetensors(_tree(2.0), file),
        lambda: leafpack.load_safetensors(file),
        lambda: leafpack.save_safetensors(_tree(2.0), file.encode()),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"\\x00x: a path cannot have a zero byte"):
            call()
    assert TensorDict.load_memmap(tmp_path / "m").equal(_tree())
    assert leafpack.load_safetensors(tmp_path / "s")["x"].equal(_tree()["x"])


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    calls = (
        lambda: TensorDict.load_memmap(tmp_path / "none"),
        lambda: leafpack.load_safetensors(tmp_path / "none"),
        lambda: leafpack.save_safetensors(_tree(), tmp_path / "none" / "x"),
        lambda: _tree().memmap(tmp_path / "none" / "x"),
    )
    for call in calls:
        with pytest.raises(FileNotFoundError, match="none"):
            call()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty/meta.json") as raised:
        TensorDict.load_memmap(tmp_path / "empty")
    assert raised.value.path == ""
    for place, gone in enumerate(("n/y.memmap", "n/meta.json", "x.memmap")):
        folder = tmp_path / f"m{place}"
        _tree().memmap(folder)
        (folder / gone).unlink()
        with pytest.raises(FileNotFoundError, match=f"m{place}/{gone}"):
            TensorDict.load_memmap(folder)
    _stack().memmap(tmp_path / "s")
    (tmp_path / "s" / "1" / "meta.json").unlink()
    with pytest.raises(FileNotFoundError, match="s/1/meta.json"):
        TensorDict.load_memmap(tmp_path / "s")


@pytest.mark.parametrize("make", (_tree, _stack))
def test_a_format_that_is_unknown(tmp_path, make):
    make().memmap(tmp_path / "m")
    meta = tmp_path / "m" / "meta.json"
    good = json.loads(meta.read_text())
    meta.write_text(json.dumps({**good, "_format_version": 99}))
    with pytest.raises(leafpack.UnsupportedError, match="m/meta.json: _format_version 99 cannot be read"):
        TensorDict.load_memmap(tmp_path / "m")
    meta.write_text(json.dumps({**good, "_format_version": 0}))
    assert TensorDict.load_memmap(tmp_path / "m").batch_size == make().batch_size


def test_names_of_files(tmp_path):
    for key, tree in (("meta.json", {"meta.json": {"x": torch.ones(2)}}),
                      ("x.memmap", {"x": torch.ones(2), "x.memmap": {"y": torch.ones(2)}})):  # fmt: skip
        with pytest.raises(ValueError, match=f"{key}.*name"):
            TensorDict(tree).memmap(tmp_path / "m")
        assert not list(tmp_path.iterdir())
