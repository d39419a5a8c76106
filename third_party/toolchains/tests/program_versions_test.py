"""A small program of the hermetic toolchain, and the reader of symbol versions that it is judged by."""

import os
import pathlib

import symbol_versions

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"])
PROGRAM = RUNFILES / "leafpack" / "third_party" / "toolchains" / "tests" / "toolchain_test"


def test_program():
    versions = symbol_versions.needed(PROGRAM.read_bytes())
    print(sorted(versions))
    assert not symbol_versions.above_ceiling(versions), sorted(versions)
    # Waits and libm would be of GLIBC 2.29 and 2.30, if the sysroot's edits were lost.
    assert symbol_versions.highest(versions)["GLIBC"] <= (2, 17), sorted(versions)
    # The program does use std::filesystem, and the reader sees it.
    assert ("libstdc++.so.6", "GLIBCXX_3.4.26") in versions, sorted(versions)


def test_a_library_of_newer_symbols_is_above_the_ceiling():
    torch = RUNFILES / "libtorch" / "site" / "torch" / "lib" / "libtorch_cpu.so"
    versions = symbol_versions.needed(torch.read_bytes())
    assert symbol_versions.highest(versions)["GLIBC"] == (2, 28), symbol_versions.highest(versions)
    # torch brings its own OpenMP.
    assert set(symbol_versions.above_ceiling(versions)) == {"GOMP", "OMP"}
    above = symbol_versions.above_ceiling(versions | {("libc.so.6", "GLIBC_2.34")})
    assert above["GLIBC"] == (2, 34)
