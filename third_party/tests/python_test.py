"""Pinned packages import, an extension module takes a tensor, and nothing of the host is seen."""

import os
import subprocess
import sys

import tensordict
import torch

import extension


def test_versions_are_the_pinned_ones():
    assert torch.__version__ == "2.13.0+cpu"
    assert tensordict.__version__ == "0.15.3"


def test_extension_takes_a_tensor():
    assert extension.sizes(torch.zeros(2, 3)) == "2x3"


def test_extension_exports_its_init_symbol_only():
    symbols = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=just-symbols", extension.__file__],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert symbols == ["PyInit_extension"]


def test_extension_holds_no_path():
    headers = subprocess.run(
        ["readelf", "--dynamic", extension.__file__], check=True, capture_output=True, text=True
    ).stdout
    assert "libtorch_cpu.so" in headers
    assert "RPATH" not in headers and "RUNPATH" not in headers


def test_only_runfiles_and_the_standard_library_are_importable():
    runfiles = os.environ["RUNFILES_DIR"]
    standard_library = os.path.dirname(os.path.dirname(os.__file__))
    for path in sys.path:
        assert path.startswith(runfiles) or path.startswith(standard_library), path
        assert "site-packages" not in path or path.startswith(runfiles), path
