"""The crates build and pass their tests by cargo alone, off-line."""

import os
import pathlib
import shutil
import subprocess

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"])
HERE = RUNFILES / "leafpack" / "bindings" / "rust"
TOOLS = RUNFILES / "local_rust" / "bin"
LIBRARY = RUNFILES / "leafpack" / "bindings" / "c"
TORCH = RUNFILES / "libtorch" / "site" / "torch" / "lib"


def test_cargo_test_off_line(tmp_path):
    workspace = tmp_path / "rust"
    shutil.copytree(HERE, workspace, ignore=shutil.ignore_patterns("*.rlib", "*.py"))
    environment = {
        **os.environ,
        "CARGO_HOME": str(tmp_path / "cargo"),
        "LEAFPACK_LIB_DIR": str(LIBRARY),
        "LD_LIBRARY_PATH": f"{LIBRARY}:{TORCH}",
        "RUSTC": str(TOOLS / "rustc"),
        "RUSTDOC": str(TOOLS / "rustdoc"),
    }

    def cargo(*arguments):
        done = subprocess.run(
            [TOOLS / "cargo", *arguments],
            cwd=workspace,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        print(done.stdout)
        assert done.returncode == 0
        return done.stdout

    # Tests that need ranks run under Bazel's launcher, documentation's in a test of its own.
    output = cargo("test", "--offline", "--workspace", "--lib", "--test=tree_test", "--test=version_test")
    assert output.count("test result: ok.") >= 3
    cargo("build", "--offline", "--examples")
