"""Programs that Rust must refuse: a call in flight cannot outlive its leaves, nor a slice its tree.

Each case of cases.rs is a function. The file compiles as it is; with `--cfg wrong`, exactly the cases
give an error, each in its own function and of its own kind.
"""

import json
import os
import pathlib
import re
import subprocess

import pytest

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"])
HERE = RUNFILES / "leafpack" / "bindings" / "rust"
RUSTC = RUNFILES / "local_rust" / "bin" / "rustc"
CASES = HERE / "compile_fail" / "cases.rs"


def compile(tmp_path, *flags):
    """Exit code and errors (code, line) of a compilation."""
    done = subprocess.run(
        [
            RUSTC,
            "--edition=2021",
            "--crate-type=rlib",
            "--crate-name=cases",
            "--error-format=json",
            "--emit=metadata",
            f"--out-dir={tmp_path}",
            f"-Ldependency={HERE}",
            f"--extern=leafpack={HERE}/libleafpack.rlib",
            *flags,
            CASES,
        ],
        text=True,
        stderr=subprocess.PIPE,
    )
    messages = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    errors = []
    for message in messages:
        if message.get("level") == "error" and message["code"]:
            (span, *_) = [span for span in message["spans"] if span["is_primary"]]
            errors.append((message["code"]["code"], span["line_start"]))
            print(message["rendered"])
    return done.returncode, errors


def cases():
    """Name, expected error and first line of each case."""
    lines = CASES.read_text().splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        if match := re.fullmatch(r"// case: (\w+) (E\d{4})", line):
            found.append((*match.groups(), number))
    return found


def test_the_cases_compile_without_what_is_wrong(tmp_path):
    code, errors = compile(tmp_path)
    assert code == 0 and errors == []


def test_every_case_is_refused_for_its_reason(tmp_path):
    # Types are checked before borrows, so errors of types hide the others.
    _, of_types = compile(tmp_path, "--cfg=wrong")
    _, of_borrows = compile(tmp_path, "--cfg=wrong", "--cfg=only_borrows")
    expected = cases()
    assert len(expected) >= 17
    found = {}
    for code, line in {*of_types, *of_borrows}:
        name = max((case for case in expected if case[2] < line), key=lambda case: case[2])[0]
        found.setdefault(name, set()).add(code)
    assert found == {name: {code} for name, code, _ in expected}
