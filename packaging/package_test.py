"""The package: what is in the tar, and projects of CMake and pkg-config, in C++ and C, built against it."""

import os
import pathlib
import re
import shutil
import subprocess
import tarfile
from concurrent import futures

import pytest

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"])
PACKAGE = next((RUNFILES / "leafpack" / "packaging").glob("leafpack-*.tar"))
CONSUMER = RUNFILES / "leafpack" / "packaging" / "consumer"
CONSUMER_C = RUNFILES / "leafpack" / "packaging" / "consumer_c"
TOOLS = RUNFILES / "pypi_build_tools" / "site"
CMAKE = TOOLS / "cmake" / "data" / "bin" / "cmake"
NINJA = next(TOOLS.glob("ninja-*.data/scripts/ninja"))
PKGCONF = TOOLS / "pkgconf" / ".bin" / "pkgconf"
TORCH = RUNFILES / "libtorch" / "site" / "torch"


def run(*command, **more):
    """The output of a command that must succeed."""
    done = subprocess.run(
        [str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more
    )
    print(done.stdout)
    assert done.returncode == 0, f"{command} ended with {done.returncode}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Where the package is unpacked: a path that nothing in it can know, with a space."""
    folder = tmp_path_factory.mktemp("some where")
    with tarfile.open(PACKAGE) as tar:
        tar.extractall(folder, filter="tar")
    (root,) = folder.iterdir()
    return root


def check_program(program, prefix):
    """The program works as the only rank, and on two."""
    assert "rank 0 of 1: encoder.weight is 1\n" in run(program)
    output = run(prefix / "bin" / "leafpack-launch", "-n", "2", "--", program)
    for rank in range(2):
        assert f"rank {rank} of 2: encoder.weight is 1.5\n" in output


def test_the_tar_has_no_trace_of_where_and_when_it_was_made():
    with tarfile.open(PACKAGE) as tar:
        members = tar.getmembers()
        names = [member.name for member in members]
        assert names == sorted(names)
        assert {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members} == {
            (0, 0, "", "", 0)
        }
        assert {member.mode for member in members} == {0o644, 0o755, 0o777}
        for member in members:
            assert member.name.startswith(PACKAGE.name.removesuffix(".tar") + "/")
            if member.isfile():
                content = tar.extractfile(member).read()
                for trace in (b"/execroot/", b"bazel-out/", os.fsencode(os.environ["RUNFILES_DIR"])):
                    assert trace not in content, f"{member.name} holds {trace}"


def test_the_headers_are_the_public_ones_and_what_they_include(prefix):
    include = prefix / "include" / "leafpack"
    for umbrella in ("distributed/distributed.h", "tensordict/tensordict.h", "tensordict/ops/ops.h"):
        assert (include / umbrella).is_file()
    # What no public header includes stays out.
    assert not (include / "distributed" / "core" / "channel").exists()
    assert not (include / "gloo").exists()
    assert not (include / "ATen").exists()


@pytest.mark.parametrize("library", ["libleafpack_cpp.so", "libleafpack.so"])
def test_the_libraries_need_torch_and_say_no_path(prefix, library):
    dynamic = run("readelf", "--dynamic", "--wide", prefix / "lib" / library)
    assert "RUNPATH" not in dynamic and "RPATH" not in dynamic
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed - {"ld-linux-x86-64.so.2"} == {
        "libc.so.6",
        "libc10.so",
        "libgcc_s.so.1",
        "libm.so.6",
        "libstdc++.so.6",
        "libtorch_cpu.so",
    }
    (soname,) = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    assert (prefix / "lib" / soname).is_file()


def configure(prefix, build, source=CONSUMER, torch=TORCH, check=True):
    """Runs CMake; its output, which must be a success unless `check` is false."""
    done = subprocess.run(
        [
            CMAKE,
            "-G",
            "Ninja",
            "-S",
            source,
            "-B",
            build,
            f"-DCMAKE_MAKE_PROGRAM={NINJA}",
            f"-DCMAKE_PREFIX_PATH={prefix};{torch}",
        ],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    print(done.stdout)
    assert not check or done.returncode == 0
    return done.stdout


def build_by_cmake(prefix, folder, source):
    configure(prefix, folder, source=source)
    run(CMAKE, "--build", folder)
    return folder / source.name


def build_by_pkg_config(prefix, folder, package, compiler, source):
    flags = run(
        PKGCONF,
        f"--define-variable=torch_prefix={TORCH}",
        "--cflags",
        "--libs",
        package,
        env={**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")},
    )
    # As a Makefile does it: a shell splits the flags.
    folders = f"-Wl,-rpath,'{prefix}/lib' -Wl,-rpath,'{TORCH}/lib'"
    run("sh", "-c", f"{compiler} '{source}' -o '{folder}/consumer' {flags.strip()} {folders}")
    return folder / "consumer"


@pytest.fixture(scope="module")
def programs(prefix, tmp_path_factory):
    """The programs, by what builds them, as futures: compiling C++ takes most of the test's time, so it is done
    side by side."""
    # As compilers that drop libraries of which nothing is called.
    c = "cc -std=c11 -Wall -Wextra -pedantic -Werror -Wl,--as-needed"
    builds = {
        "CMake, C++": (build_by_cmake, CONSUMER),
        "pkg-config, C++": (build_by_pkg_config, "leafpack", "c++", CONSUMER / "main.cc"),
        "CMake, C": (build_by_cmake, CONSUMER_C),
        "pkg-config, C": (build_by_pkg_config, "leafpack-c", c, CONSUMER_C / "main.c"),
    }
    with futures.ThreadPoolExecutor(max_workers=2) as pool:
        yield {
            name: pool.submit(build, prefix, tmp_path_factory.mktemp("build"), *arguments)
            for name, (build, *arguments) in builds.items()
        }


@pytest.mark.parametrize("how", ["CMake, C", "pkg-config, C", "CMake, C++", "pkg-config, C++"])
def test_a_program_builds_and_runs(prefix, programs, how):
    check_program(programs[how].result(), prefix)


def fake_torch(folder, version):
    """A package Torch of another version."""
    folder.mkdir()
    (folder / "TorchConfig.cmake").write_text("set(TORCH_LIBRARIES torch)\n")
    (folder / "TorchConfigVersion.cmake").write_text(
        f'set(PACKAGE_VERSION "{version}")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n'
    )
    return folder


def test_another_torch_is_refused_by_both_versions(prefix, tmp_path):
    output = configure(prefix, tmp_path / "build", torch=fake_torch(tmp_path / "fake", "2.1.30"), check=False)
    text = " ".join(output.split())
    assert re.search(r"leafpack .* is built for torch 2\.13, and torch 2\.1\.30 was found in", text)


@pytest.mark.parametrize("wanted, found", [("0.1", True), ("0.1.0", True), ("0.1.9", False), ("0.2", False), ("1", False)])
def test_versions_that_meet_a_request(prefix, tmp_path, wanted, found):
    source = tmp_path / "source"
    shutil.copytree(CONSUMER, source)
    lists = source / "CMakeLists.txt"
    lists.chmod(0o644)
    lists.write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(versions NONE)\n"
        f"find_package(leafpack {wanted} CONFIG QUIET)\n"
        'message(STATUS "found: ${leafpack_VERSION}, looked at: ${leafpack_CONSIDERED_VERSIONS}")\n'
    )
    # Only the choice of the version is looked at, so the real Torch need not be there.
    output = configure(prefix, tmp_path / "build", source=source, torch=fake_torch(tmp_path / "fake", "2.13.0"))
    assert ("found: 0.1.0, looked at: 0.1.0" in output) == found
