"""The program `leafpack`, also `python -m leafpack`: one command per module, each adds its own parser."""

from __future__ import annotations

import argparse

from leafpack import _doctor, _flight
from leafpack._version import __version__


def parser() -> argparse.ArgumentParser:
    """The argument parser; `run` of what it returns is the function of the command."""
    result = argparse.ArgumentParser(prog="leafpack", description="Tools of leafpack.")
    result.add_argument("--version", action="version", version=f"leafpack {__version__}")
    commands = result.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (_doctor, _flight):
        module.add_parser(commands)
    return result


def main(arguments=None) -> int:
    """Runs the command that `arguments` (else those of the process) name; returns its exit code."""
    parsed = parser().parse_args(arguments)
    return parsed.run(parsed)
