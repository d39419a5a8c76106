"""Registers the backend "shm" with torch.distributed: init_process_group("shm"), "cpu:shm,cuda:nccl"."""

from __future__ import annotations

import logging

import torch.distributed as dist

NAME = "shm"

_log = logging.getLogger("leafpack")


def _make(store, rank, size, timeout):
    """The backend of one group, for torch.distributed; its ranks call this together."""
    from leafpack import _C

    backend, reason = _C.make_shm_backend(store, rank, size, timeout.total_seconds())
    if backend is not None:
        return backend
    if not dist.is_gloo_available():
        raise RuntimeError(f"shm: not all ranks share memory ({reason}), and torch has no Gloo")
    if rank == 0:
        _log.warning("not all ranks share memory (%s); the group uses Gloo in place of shm", reason)
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)


def register() -> None:
    """Registers the backend, once. Does nothing where torch was built without distributed."""
    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _make, devices=["cpu"])
