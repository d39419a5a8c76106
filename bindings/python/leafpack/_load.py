"""Loads torch, checks its version, and only then the C++ part, which uses torch's libraries."""

from __future__ import annotations

from leafpack._version import __version__, torch_version

try:
    import torch
except ImportError as error:
    raise ImportError(
        f"leafpack {__version__} needs torch {torch_version}, which cannot be imported: {error}"
    ) from error


def check_torch_version(found: str) -> None:
    """Raises ImportError if `found` is another minor version than the one this was built with."""
    if found.split(".")[:2] != torch_version.split("."):
        raise ImportError(
            f"leafpack {__version__} was built with torch {torch_version}, but torch {found} is "
            f"installed: install torch {torch_version}, or the leafpack that was built with "
            f"torch {'.'.join(found.split('.')[:2])}"
        )


check_torch_version(torch.__version__)

# c10d's classes must be known to Python before C++ takes process groups.
import torch.distributed  # noqa: E402, F401

from leafpack import _C  # noqa: E402, F401
