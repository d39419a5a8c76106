"""The program in the manual is the example that is compiled and run."""

import os
import pathlib

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"]) / "leafpack"


def test_the_manual_has_the_example():
    example = (RUNFILES / "bindings" / "rust" / "leafpack" / "examples" / "average.rs").read_text()
    assert f"```rust\n{example}```" in (RUNFILES / "docs" / "rust.md").read_text()
