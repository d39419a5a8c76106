"""The wheel: what is in it, what its metadata says, and two ranks that use it in a fresh environment."""

import base64
import csv
import hashlib
import io
import os
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

import pytest

RUNFILES = pathlib.Path(os.environ["RUNFILES_DIR"])
WHEEL = next((RUNFILES / "leafpack" / "bindings" / "python").glob("leafpack-*.whl"))
TWINE = RUNFILES / "pypi_twine" / "site"

# What one rank does: every kind of tree, sync and async, and an error that names a path.
RANK = """
import sys
import tensordict
import torch
import torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
import leafpack

tree = tensordict.TensorDict({"a": torch.full((3,), rank + 1.0), "b": {"c": torch.arange(4)}})
leafpack.all_reduce(tree)
assert tree["a"].tolist() == [3.0, 3.0, 3.0], tree["a"]
assert tree["b", "c"].tolist() == [0, 2, 4, 6], tree["b", "c"]

module = torch.nn.Linear(2, 2)
with torch.no_grad():
    for parameter in module.parameters():
        parameter.fill_(rank)
work = leafpack.all_reduce(module, op="avg", async_op=True)
work.wait()
assert all((parameter == 0.5).all() for parameter in module.parameters())

try:
    leafpack.all_reduce({"same": torch.ones(1), f"only_on_{rank}": torch.ones(1)})
except leafpack.LayoutMismatchError as error:
    assert "only_on_0" in str(error), error
else:
    raise AssertionError("no error for trees that differ")
dist.destroy_process_group()
print("rank", rank, "of", leafpack.__version__, "from", leafpack.__file__)
"""


def contents():
    with zipfile.ZipFile(WHEEL) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def clean_environment(**more):
    """An environment without the import path of this test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, **more}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A fresh virtual environment that has torch, tensordict and the wheel; its python."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python3.*/site-packages"))
    packages = [RUNFILES / "libtorch" / "site", RUNFILES / "pypi_test" / "site"]
    (site / "pinned.pth").write_text("".join(f"{package}\n" for package in packages))
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", WHEEL],
        check=True,
        env=clean_environment(),
    )
    return python


def test_tags_match_the_interpreter_and_the_name():
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert re.fullmatch(rf"leafpack-[0-9.]+-{tag}-{tag}-\w+\.whl", WHEEL.name)
    files = contents()
    (info,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
    assert f"Tag: {WHEEL.name.split('-', 2)[2][: -len('.whl')]}" in files[f"{info}/WHEEL"].decode()


def test_holds_the_package_and_nothing_of_torch():
    files = contents()
    assert "leafpack/__init__.py" in files
    assert "leafpack/py.typed" in files
    assert "leafpack/_C.so" in files
    assert any(name.endswith(".pyi") for name in files)
    libraries = [name for name in files if ".so" in name]
    assert libraries == ["leafpack/_C.so"]
    assert {name.split("/")[0] for name in files if ".dist-info/" not in name} == {"leafpack"}


def test_record_is_right():
    files = contents()
    (name,) = [name for name in files if name.endswith(".dist-info/RECORD")]
    rows = list(csv.reader(io.StringIO(files[name].decode())))
    assert [row[0] for row in rows] == list(files)
    for path, digest, size in rows:
        if path != name:
            expected = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).rstrip(b"=")
            assert (digest, int(size)) == ("sha256=" + expected.decode(), len(files[path]))


def test_module_exports_its_init_symbol_only_and_holds_no_path(tmp_path):
    module = tmp_path / "_C.so"
    module.write_bytes(contents()["leafpack/_C.so"])
    symbols = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=just-symbols", module],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert symbols == ["PyInit__C"]
    dynamic = subprocess.run(
        ["readelf", "--dynamic", module], check=True, capture_output=True, text=True
    ).stdout
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


def test_metadata_pins_torch_and_names_the_licence():
    files = contents()
    (name,) = [name for name in files if name.endswith(".dist-info/METADATA")]
    header, _, description = files[name].decode().partition("\n\n")
    lines = header.splitlines()
    assert "Requires-Dist: torch==2.13.*" in lines
    assert any(line.startswith("License-Expression: Apache-2.0") for line in lines)
    assert description.startswith("# leafpack")


def test_twine_check():
    result = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", WHEEL],
        env=clean_environment(PYTHONPATH=str(TWINE), NO_COLOR="1"),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PASSED" in result.stdout


def test_auditwheel_finds_no_library_but_those_of_torch():
    result = subprocess.run(
        [sys.executable, "-m", "auditwheel", "-v", "show", WHEEL],
        env=clean_environment(PYTHONPATH=str(TWINE)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    said = " ".join(result.stdout.split())
    assert f'consistent with the following platform tag: "linux_{platform.machine()}"' in said, said
    # One list of libraries for each older platform, and all must come with torch.
    lists = re.findall(r"dependencies will need to be eliminated: ((?:lib[^ ]+ ?)+)", said)
    libraries = {name.strip(",") for names in lists for name in names.split()}
    assert "libtorch_cpu.so" in libraries, said
    shipped = {path.name for path in (RUNFILES / "libtorch" / "site" / "torch" / "lib").iterdir()}
    assert libraries <= shipped, libraries - shipped


def test_with_another_torch_the_import_names_both_versions(environment, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('__version__ = "2.14.1+cpu"\n')
    result = subprocess.run(
        [environment, "-c", "import leafpack"],
        env=clean_environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("ImportError: ")]
    assert "built with torch 2.13" in error and "torch 2.14.1+cpu is installed" in error, error


def test_the_program_is_installed(environment):
    program = environment.with_name("leafpack")
    version = subprocess.run([program, "--version"], env=clean_environment(), capture_output=True, text=True)
    assert version.returncode == 0 and re.fullmatch(r"leafpack [0-9.]+", version.stdout.strip()), version
    wrong = subprocess.run([program, "flight", "/none"], env=clean_environment(), capture_output=True, text=True)
    assert wrong.returncode == 2 and "/none" in wrong.stderr, wrong


def test_two_ranks_use_it(environment, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    ranks = [
        subprocess.Popen(
            [environment, script, str(rank), tmp_path / "store"],
            env=clean_environment(),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, output in zip(ranks, outputs):
        assert rank.returncode == 0, "\n".join(outputs)
        assert str(environment.parent.parent) in output, output
