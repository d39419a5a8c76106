"""What the package says of itself: versions, exported symbols, type stubs."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import leafpack
from leafpack import _load


def test_versions():
    assert leafpack.torch_version == ".".join(torch.__version__.split(".")[:2])
    assert leafpack._C.torch_version.startswith(leafpack.torch_version + ".")


def test_version_is_that_of_the_wheel():
    folder = pathlib.Path(os.environ["RUNFILES_DIR"], "leafpack", "bindings", "python")
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.split("-")[:2] == ["leafpack", leafpack.__version__]


@pytest.mark.parametrize("found", ("2.14.1", "2.1.3", "3.13.0", "1.13", "2.130.0+cpu"))
def test_another_torch_is_refused(found):
    with pytest.raises(ImportError) as error:
        _load.check_torch_version(found)
    assert leafpack.torch_version in str(error.value) and found in str(error.value)


@pytest.mark.parametrize("found", ("2.13.0+cpu", "2.13.1", "2.13.0a0+git123"))
def test_another_patch_release_is_taken(found):
    _load.check_torch_version(found)


def test_import_alone_loads_torch():
    """In a fresh interpreter, in which nothing has loaded torch's libraries."""
    program = "import sys, leafpack; assert 'torch' in sys.modules; print(leafpack.__version__)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == leafpack.__version__


def test_importing_does_not_import_tensordict():
    program = "import sys, leafpack; assert 'tensordict' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_only_the_init_symbol_is_exported():
    symbols = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=just-symbols", leafpack._C.__file__],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert symbols == ["PyInit__C"]


def _stub(name):
    path = pathlib.Path(leafpack.__file__).with_name(name)
    return ast.parse(path.read_text())


def _parameters(function):
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def test_stubs_name_what_is_there():
    exported = {
        alias.asname or alias.name
        for node in _stub("__init__.pyi").body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    defined = {
        node.name: node
        for node in _stub("__init__.pyi").body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }
    variables = {
        node.target.id for node in _stub("__init__.pyi").body if isinstance(node, ast.AnnAssign)
    }
    assert set(leafpack.__all__) <= exported | set(defined) | variables
    for name, node in defined.items():
        thing = getattr(leafpack, name)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, (ast.FunctionDef, ast.AnnAssign)):
                    member_name = (
                        member.name if isinstance(member, ast.FunctionDef) else member.target.id
                    )
                    assert hasattr(thing, member_name), f"{name}.{member_name}"
    assert _parameters(defined["all_reduce"]) == list(
        inspect.signature(leafpack.all_reduce).parameters
    )
    methods = {m.name: m for m in defined["TensorDict"].body if isinstance(m, ast.FunctionDef)}
    assert _parameters(methods["all_reduce"]) == list(
        inspect.signature(leafpack.TensorDict.all_reduce).parameters
    )
    public = {name for name in vars(leafpack.TensorDict) if not name.startswith("_")}
    assert public == {name for name in methods if not name.startswith("_")}
    members = {
        member.name if isinstance(member, ast.FunctionDef) else member.target.id
        for member in defined["LazyStack"].body
    }
    public = {name for name in vars(leafpack.LazyStack) if not name.startswith("_")}
    assert public == {name for name in members if not name.startswith("_")}


def test_py_typed_ships():
    assert pathlib.Path(leafpack.__file__).with_name("py.typed").exists()


def test_method_has_the_signature_of_tensordict():
    tensordict = pytest.importorskip("tensordict")
    mine = inspect.signature(leafpack.TensorDict.all_reduce).parameters
    theirs = inspect.signature(tensordict.TensorDict.all_reduce).parameters
    assert list(mine) == list(theirs)
    for name in mine:
        assert mine[name].kind == theirs[name].kind
        assert mine[name].default == theirs[name].default


def test_errors_are_what_python_programs_expect():
    assert issubclass(leafpack.LayoutMismatchError, ValueError)
    assert issubclass(leafpack.PeerRefusedError, RuntimeError)
    assert issubclass(leafpack.UnsupportedError, TypeError)
    assert issubclass(leafpack.DeadlineError, TimeoutError)
    assert issubclass(leafpack.PeerLostError, ConnectionError)
    assert issubclass(leafpack.UnavailableError, ConnectionError)
    for name in (
        "LayoutMismatchError",
        "PeerRefusedError",
        "UnsupportedError",
        "DeadlineError",
        "PeerLostError",
        "UnavailableError",
    ):
        error = getattr(leafpack, name)("text")
        assert isinstance(error, leafpack.Error)
        assert error.path == "" and error.ranks == () and error.tree_unchanged
