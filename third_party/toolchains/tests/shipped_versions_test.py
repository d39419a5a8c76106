"""What is shipped asks for no newer glibc and libstdc++ than docs/toolchains.md says."""

import os
import pathlib
import tarfile
import zipfile

import pytest
import symbol_versions

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"]) / "leafpack"


def shipped():
    """Name and bytes of every file in what is shipped."""
    for path in RUNFILES.glob("bindings/c/*.so"):
        yield path.name, path.read_bytes()
    for path in RUNFILES.glob("bindings/python/*.whl"):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                yield f"{path.name}:{name}", wheel.read(name)
    for path in RUNFILES.glob("packaging/*.tar"):
        with tarfile.open(path) as package:
            for member in package:
                if member.isfile():
                    yield f"{path.name}:{member.name}", package.extractfile(member).read()


FILES = {name: data for name, data in shipped() if data[:4] == b"\x7fELF"}


def test_all_that_is_shipped_was_found():
    for part in ("libleafpack.so", ":leafpack/_C.so", "/libleafpack_cpp.so", "/leafpack-launch"):
        assert any(part in name for name in FILES), (part, list(FILES))


@pytest.mark.parametrize("name", FILES)
def test_versions(name):
    versions = symbol_versions.needed(FILES[name])
    assert any(library == "libc.so.6" for library, _ in versions), versions
    print(name, symbol_versions.highest(versions))
    assert not symbol_versions.above_ceiling(versions), sorted(versions)
