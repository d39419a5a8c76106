"""Keeps trees of tensors in step across processes.

    import torch.distributed as dist
    import leafpack

    dist.init_process_group("gloo")
    leafpack.all_reduce(grads, "avg")  # a tensordict, nested dicts, or a module

Every rank of the group makes the same calls in the same order. Before a leaf changes, the ranks compare
the layout of the tree and the arguments of the call; if they disagree, each rank gets one error that
names the first differing path, and no leaf has changed.
"""

from __future__ import annotations

from leafpack._version import __version__, torch_version
from leafpack import _load  # torch first, and of the right version  # noqa: F401
from leafpack import _torch_backend
from leafpack._C import BucketWork, PremulSum, TensorDict, TreeWork, premul_sum
from leafpack import _methods, _tree
from leafpack._collectives import (
    P2POp,
    all_gather,
    all_gather_bytes,
    all_gather_joined,
    all_reduce,
    all_to_all,
    barrier,
    batch_isend_irecv,
    broadcast,
    broadcast_bytes,
    gather,
    gather_and_stack,
    gather_bytes,
    irecv,
    isend,
    recv,
    reduce,
    reduce_scatter,
    scatter,
    scatter_bytes,
    send,
    share,
)
from leafpack._errors import (
    DeadlineError,
    Error,
    LayoutMismatchError,
    PeerLostError,
    PeerRefusedError,
    UnavailableError,
    UnsupportedError,
)
from leafpack._groups import Group, NonMember
from leafpack._install import Installed, install, uninstall
from leafpack._recorder import flight_dump, flight_on_error, flight_on_signal, flight_record
from leafpack._tensorclass import TensorClass, is_tensorclass, tensorclass
from leafpack._tree.files import load_safetensors, save_safetensors
from leafpack._tree.lazy import LazyStack, lazy_stack
from leafpack._tree.processes import pad_sequence

_tree.attach()
_methods.attach()
_torch_backend.register()

__all__ = [
    "BucketWork",
    "DeadlineError",
    "Error",
    "Group",
    "Installed",
    "LayoutMismatchError",
    "LazyStack",
    "NonMember",
    "P2POp",
    "PeerLostError",
    "PeerRefusedError",
    "PremulSum",
    "TensorClass",
    "TensorDict",
    "TreeWork",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "all_gather",
    "all_gather_bytes",
    "all_gather_joined",
    "all_reduce",
    "all_to_all",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_bytes",
    "flight_dump",
    "flight_on_error",
    "flight_on_signal",
    "flight_record",
    "gather",
    "gather_and_stack",
    "gather_bytes",
    "install",
    "irecv",
    "is_tensorclass",
    "isend",
    "lazy_stack",
    "load_safetensors",
    "pad_sequence",
    "premul_sum",
    "recv",
    "reduce",
    "reduce_scatter",
    "save_safetensors",
    "scatter",
    "scatter_bytes",
    "send",
    "share",
    "tensorclass",
    "torch_version",
    "uninstall",
]
