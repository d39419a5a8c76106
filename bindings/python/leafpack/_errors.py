"""The exceptions of leafpack, and how a C++ status becomes one of them."""

from __future__ import annotations

import errno


class Error(Exception):
    """Base of the exceptions that a collective raises beside ValueError, KeyError and TypeError.

    Attributes:
        path: printable path of the first leaf concerned, or "".
        ranks: the ranks (of the job) that the error is about, sorted.
        paths_done: leaves that already held the reduced value when the call failed.
        tree_unchanged: True if every leaf of this rank is as it was before the call.
        outcome_unknown: True if other ranks may have succeeded.
    """

    path: str = ""
    ranks: tuple[int, ...] = ()
    paths_done: tuple[str, ...] = ()
    tree_unchanged: bool = True
    outcome_unknown: bool = False


class LayoutMismatchError(Error, ValueError):
    """The ranks disagree about the call or the tree: `path` and `ranks` say where. Nothing has changed."""


class PeerRefusedError(Error, RuntimeError):
    """Another rank refused the call or failed in it: `ranks` names it."""


class UnsupportedError(Error, TypeError):
    """An op, a dtype or a kind of leaf that cannot be reduced: `path` names the leaf."""


class DeadlineError(Error, TimeoutError):
    """The deadline passed, and `ranks` were missing; or the rank in `ranks` gave the call up."""


class PeerLostError(Error, ConnectionError):
    """The process of another rank is gone: `ranks` names it."""


class UnavailableError(Error, ConnectionError):
    """A store, a file or a port refused, or is gone. No rank is known to be."""


# leafpack::ErrorKind of distributed/core/error.h.
_BY_KIND = {
    1: LayoutMismatchError,
    2: PeerRefusedError,
    3: UnsupportedError,
    4: DeadlineError,
    5: DeadlineError,  # given up by another rank; one's own interrupt is KeyboardInterrupt
    6: PeerLostError,
}

# absl::StatusCode, for a status that carries no kind.
_BY_CODE = {
    1: DeadlineError,  # cancelled
    3: ValueError,  # invalid argument
    4: DeadlineError,  # deadline exceeded
    5: KeyError,  # not found
    6: ValueError,  # already exists
    8: MemoryError,  # resource exhausted
    9: RuntimeError,  # failed precondition
    11: ValueError,  # out of range
    12: UnsupportedError,  # unimplemented
    14: UnavailableError,
}

# The same for files: the class, and what errno says.
_BY_CODE_OF_FILES = {
    5: (FileNotFoundError, errno.ENOENT),
    6: (FileExistsError, errno.EEXIST),
    9: (FileExistsError, errno.EEXIST),
}


def from_status(
    kind: int,
    code: int,
    message: str,
    path: str,
    ranks: list[int],
    paths_done: list[str],
    tree_unchanged: bool,
    outcome_unknown: bool,
) -> Exception:
    """Returns the exception for a status. Called from C++."""
    return _with_details(
        (_BY_KIND.get(kind) or _BY_CODE.get(code, RuntimeError))(message),
        path, ranks, paths_done, tree_unchanged, outcome_unknown,
    )  # fmt: skip


def from_file_status(kind: int, code: int, message: str, *details) -> Exception:
    """Returns the exception for the status of a file that was read or written. Called from C++."""
    if code not in _BY_CODE_OF_FILES:
        return from_status(kind, code, message, *details)
    of, number = _BY_CODE_OF_FILES[code]
    return _with_details(of(number, message), *details)


def _with_details(error, path, ranks, paths_done, tree_unchanged, outcome_unknown):
    error.path = path
    error.ranks = tuple(ranks)
    error.paths_done = tuple(paths_done)
    error.tree_unchanged = tree_unchanged
    error.outcome_unknown = outcome_unknown
    return error
