"""The flight recorder of this process: what the last calls of each group did."""

from __future__ import annotations

import json
import os

from leafpack import _C


def flight_record() -> dict:
    """Returns the last 1,000 calls of each group of this process.

    docs/flight.md has the format; it is that of the files, too.
    """
    return json.loads(_C.flight_record("request"))


def flight_dump(folder) -> str:
    """Writes the record to a file in `folder`, for `leafpack flight`, and returns its path."""
    return _C.flight_dump(os.fspath(folder), "request")


def flight_on_error(folder) -> None:
    """From now on every call that fails here writes the record to `folder`; None turns it off.

    At first LEAFPACK_FLIGHT_DIR of the environment says where, and without it nothing is written.
    """
    _C.flight_on_error("" if folder is None else os.fspath(folder))


def flight_on_signal(signum, folder=".") -> None:
    """From now on signal `signum`, e.g. signal.SIGUSR1, writes the record to `folder`.

    Works also while the program is stuck in a call: a thread outside of Python does it. A handler that
    was there before is called as well.
    """
    _C.flight_on_signal(int(signum), os.fspath(folder))
