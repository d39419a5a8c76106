"""Types of leafpack's Python face. The manual, docs/python.md, says what they mean."""

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

import torch
import torch.distributed

__version__: str
torch_version: str

Path: TypeAlias = tuple[str | int, ...]
Key: TypeAlias = str | int | Path
Timeout: TypeAlias = float | datetime.timedelta | None
Tree: TypeAlias = (
    TensorDict
    | torch.Tensor
    | torch.nn.Module
    | Mapping[str, Any]
    | Mapping[int, Any]
    | Sequence[Any]
    # tensordict.TensorDictBase and tensorclasses, which are not imported here.
    | Any
)
OpName: TypeAlias = Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor"]
Op: TypeAlias = OpName | PremulSum | torch.distributed.ReduceOp | None
Check: TypeAlias = Literal["always", "first", "off"]
Buffer: TypeAlias = bytes | bytearray | memoryview
GroupLike: TypeAlias = Group | NonMember | torch.distributed.ProcessGroup | None

class Error(Exception):
    path: str
    ranks: tuple[int, ...]
    paths_done: tuple[str, ...]
    tree_unchanged: bool
    outcome_unknown: bool

class LayoutMismatchError(Error, ValueError): ...
class PeerRefusedError(Error, RuntimeError): ...
class UnsupportedError(Error, TypeError): ...
class DeadlineError(Error, TimeoutError): ...
class PeerLostError(Error, ConnectionError): ...

class PremulSum:
    @property
    def factor(self) -> float: ...

def premul_sum(factor: float) -> PremulSum: ...

class BucketWork:
    def wait(self, timeout: Timeout = None) -> None: ...
    def is_completed(self) -> bool: ...
    @property
    def bytes(self) -> int: ...
    @property
    def paths(self) -> list[str]: ...

class TreeWork:
    def wait(self, timeout: Timeout = None) -> None: ...
    def is_completed(self) -> bool: ...
    def result(self) -> Any: ...
    def cancel(self) -> None: ...
    def stats(self) -> dict[str, float]: ...
    @property
    def skipped_paths(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> BucketWork: ...
    def __iter__(self) -> Iterator[BucketWork]: ...

class NonMember:
    ranks: tuple[int, ...]
    def error(self) -> ValueError: ...
    def __bool__(self) -> Literal[False]: ...

class Group:
    @staticmethod
    def from_environment(
        *, backend: str = "gloo", timeout: Timeout = None, interface: str = ""
    ) -> Group: ...
    @staticmethod
    def from_file(
        path: str | os.PathLike[str],
        rank: int,
        size: int,
        *,
        backend: str = "gloo",
        timeout: Timeout = None,
        interface: str = "",
    ) -> Group: ...
    @staticmethod
    def from_url(
        url: str = "env://",
        rank: int | None = None,
        size: int | None = None,
        *,
        backend: str = "gloo",
        timeout: Timeout = None,
        interface: str = "",
    ) -> Group: ...
    @staticmethod
    def from_store(
        store: torch.distributed.Store,
        rank: int,
        size: int,
        *,
        prefix: str,
        backend: str = "gloo",
        timeout: Timeout = None,
        interface: str = "",
    ) -> Group: ...
    @staticmethod
    def around(group: GroupLike = None) -> Group: ...
    def new_group(
        self,
        ranks: Iterable[int],
        *,
        name: str = "",
        backend: str | None = None,
        timeout: Timeout = None,
        interface: str | None = None,
    ) -> Group | NonMember: ...
    def split(
        self,
        color: int | None,
        key: int = 0,
        *,
        backend: str | None = None,
        timeout: Timeout = None,
        interface: str | None = None,
    ) -> Group | NonMember: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def global_rank(self) -> int: ...
    @property
    def global_ranks(self) -> list[int]: ...
    @property
    def backend(self) -> str: ...
    @property
    def timeout(self) -> float: ...
    def shutdown(self, timeout: Timeout = None) -> None: ...

class TensorDict:
    def __init__(
        self, source: Tree | None = None, batch_size: int | Iterable[int] = ()
    ) -> None: ...
    @staticmethod
    def from_dict(
        source: Mapping[Any, Any], batch_size: int | Iterable[int] = ()
    ) -> TensorDict: ...
    @staticmethod
    def from_tensordict(source: Any) -> TensorDict: ...
    @property
    def batch_size(self) -> torch.Size: ...
    def set(self, key: Key, value: Tree | None) -> TensorDict: ...
    def get(self, key: Key, *default: Any) -> Any: ...
    def erase(self, key: Key) -> None: ...
    def clear(self) -> None: ...
    def keys(self) -> list[Path]: ...
    def values(self) -> list[Any]: ...
    def items(self) -> list[tuple[Path, Any]]: ...
    def to_dict(self) -> dict[str | int, Any]: ...
    def is_same(self, other: TensorDict) -> bool: ...
    def layout_digest(self) -> str: ...
    def same_layout(self, other: TensorDict) -> bool: ...
    def layout_difference(self, other: TensorDict) -> str | None: ...
    @overload
    def all_reduce(
        self,
        op: Op = None,
        *,
        group: GroupLike = None,
        async_op: Literal[False] = False,
        bucket_bytes: int | Literal["auto"] | None = None,
    ) -> None: ...
    @overload
    def all_reduce(
        self,
        op: Op = None,
        *,
        group: GroupLike = None,
        async_op: bool,
        bucket_bytes: int | Literal["auto"] | None = None,
    ) -> TreeWork | None: ...
    # As tensordict.TensorDict has them.
    def reduce(
        self,
        dst: int,
        op: Op = None,
        async_op: bool = False,
        return_premature: bool = False,
        group: GroupLike = None,
        *,
        bucket_bytes: int | Literal["auto"] | None = None,
    ) -> list[BucketWork] | None: ...
    def broadcast(
        self, src: int, *, group: GroupLike = None, device: Any = None
    ) -> TensorDict: ...
    def all_gather(self, *, group: GroupLike = None) -> list[TensorDict]: ...
    def scatter(
        self,
        src: int,
        tensordicts: Sequence[Tree] | None = None,
        *,
        group: GroupLike = None,
        device: Any = None,
    ) -> TensorDict: ...
    def gather_and_stack(self, dst: int, group: GroupLike = None) -> TensorDict | None: ...
    def send(
        self,
        dst: int | None = None,
        *,
        group: GroupLike = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> None: ...
    def recv(
        self,
        src: int | None = None,
        *,
        group: GroupLike = None,
        group_src: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> int | None: ...
    def isend(
        self,
        dst: int | None = None,
        *,
        group: GroupLike = None,
        group_dst: int | None = None,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        return_early: bool = False,
        consolidated: bool = False,
    ) -> list[TreeWork] | int | None: ...
    def irecv(
        self,
        src: int | None = None,
        *,
        group: GroupLike = None,
        group_src: int | None = None,
        return_premature: bool = False,
        init_tag: int = 0,
        pseudo_rand: bool = False,
        consolidated: bool = False,
    ) -> list[TreeWork] | None: ...
    def init_remote(
        self,
        dst: int | None = None,
        group: GroupLike = None,
        device: Any = None,
        use_broadcast: bool = False,
    ) -> None: ...
    @classmethod
    def from_remote_init(
        cls, src: int, group: GroupLike = None, device: Any = None, use_broadcast: bool = False
    ) -> Any: ...
    def __setitem__(self, key: Key, value: Tree | None) -> None: ...
    def __getitem__(self, key: Key) -> Any: ...
    def __delitem__(self, key: Key) -> None: ...
    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[Path]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

@overload
def all_reduce(
    tree: Tree,
    op: Op = "sum",
    *,
    group: GroupLike = None,
    async_op: Literal[False] = False,
    bucket_bytes: int | Literal["auto"] | None = "auto",
    timeout: Timeout = None,
    leaves: Literal["all", "floating"] | Callable[[Path, Any], bool] = "all",
    name: str | None = None,
    on_failure: Literal["report", "restore"] = "report",
    check: Literal["always", "first", "off"] = "always",
    stats: dict[str, float] | None = None,
) -> None: ...
@overload
def all_reduce(
    tree: Tree,
    op: Op = "sum",
    *,
    group: GroupLike = None,
    async_op: bool,
    bucket_bytes: int | Literal["auto"] | None = "auto",
    timeout: Timeout = None,
    leaves: Literal["all", "floating"] | Callable[[Path, Any], bool] = "all",
    name: str | None = None,
    on_failure: Literal["report", "restore"] = "report",
    check: Literal["always", "first", "off"] = "always",
    stats: dict[str, float] | None = None,
) -> TreeWork | None: ...

def flight_record() -> dict[str, Any]: ...
def flight_dump(folder: str | os.PathLike[str]) -> str: ...
def flight_on_error(folder: str | os.PathLike[str] | None) -> None: ...
def flight_on_signal(signum: int, folder: str | os.PathLike[str] = ".") -> None: ...
@overload
def reduce(
    tree: Tree,
    dst: int | None = None,
    op: Op = "sum",
    *,
    group_dst: int | None = None,
    bucket_bytes: int | Literal["auto"] | None = "auto",
    leaves: Literal["all", "floating"] | Callable[[Path, Any], bool] = "all",
    on_failure: Literal["report", "restore"] = "report",
    stats: dict[str, float] | None = None,
    async_op: Literal[False] = False,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> None: ...
@overload
def reduce(
    tree: Tree,
    dst: int | None = None,
    op: Op = "sum",
    *,
    group_dst: int | None = None,
    bucket_bytes: int | Literal["auto"] | None = "auto",
    leaves: Literal["all", "floating"] | Callable[[Path, Any], bool] = "all",
    on_failure: Literal["report", "restore"] = "report",
    stats: dict[str, float] | None = None,
    async_op: bool,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> TreeWork | None: ...
@overload
def reduce_scatter(
    trees: Sequence[Tree],
    op: Op = "sum",
    *,
    bucket_bytes: int | Literal["auto"] | None = "auto",
    leaves: Literal["all", "floating"] | Callable[[Path, Any], bool] = "all",
    on_failure: Literal["report", "restore"] = "report",
    stats: dict[str, float] | None = None,
    async_op: Literal[False] = False,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
@overload
def reduce_scatter(
    trees: Sequence[Tree],
    op: Op = "sum",
    *,
    bucket_bytes: int | Literal["auto"] | None = "auto",
    leaves: Literal["all", "floating"] | Callable[[Path, Any], bool] = "all",
    on_failure: Literal["report", "restore"] = "report",
    stats: dict[str, float] | None = None,
    async_op: bool,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
@overload
def broadcast(
    tree: Tree | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    async_op: Literal[False] = False,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
@overload
def broadcast(
    tree: Tree | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    async_op: bool,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
@overload
def all_gather(
    tree: Tree,
    *,
    async_op: Literal[False] = False,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> list[Any]: ...
@overload
def all_gather(
    tree: Tree,
    *,
    async_op: bool,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> TreeWork | list[Any]: ...
@overload
def gather(
    tree: Tree,
    dst: int | None = None,
    *,
    group_dst: int | None = None,
    async_op: Literal[False] = False,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> list[Any] | None: ...
@overload
def gather(
    tree: Tree,
    dst: int | None = None,
    *,
    group_dst: int | None = None,
    async_op: bool,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> TreeWork | list[Any] | None: ...
@overload
def gather_and_stack(
    tree: Tree,
    dst: int | None = None,
    *,
    group_dst: int | None = None,
    async_op: Literal[False] = False,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
@overload
def gather_and_stack(
    tree: Tree,
    dst: int | None = None,
    *,
    group_dst: int | None = None,
    async_op: bool,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
@overload
def scatter(
    tree: Tree | None = None,
    trees: Sequence[Tree] | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    async_op: Literal[False] = False,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
@overload
def scatter(
    tree: Tree | None = None,
    trees: Sequence[Tree] | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    async_op: bool,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
@overload
def all_to_all(
    trees: Sequence[Tree],
    *,
    async_op: Literal[False] = False,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> list[Any]: ...
@overload
def all_to_all(
    trees: Sequence[Tree],
    *,
    async_op: bool,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> TreeWork | list[Any]: ...
def send(
    tree: Tree,
    dst: int | None = None,
    *,
    group_dst: int | None = None,
    tag: int = 0,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> None: ...
def isend(
    tree: Tree,
    dst: int | None = None,
    *,
    group_dst: int | None = None,
    tag: int = 0,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> TreeWork: ...
def recv(
    tree: Tree | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    tag: int = 0,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> Any: ...
def irecv(
    tree: Tree | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    tag: int = 0,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> TreeWork: ...
def barrier(
    *,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> None: ...
def broadcast_bytes(
    data: Buffer | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> bytes: ...
def all_gather_bytes(
    data: Buffer,
    *,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> list[bytes]: ...
def gather_bytes(
    data: Buffer,
    dst: int | None = None,
    *,
    group_dst: int | None = None,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> list[bytes] | None: ...
def scatter_bytes(
    data: Sequence[Buffer] | None = None,
    src: int | None = None,
    *,
    group_src: int | None = None,
    group: GroupLike = None,
    timeout: Timeout = None,
    name: str | None = None,
    check: Check = "always",
) -> bytes: ...

class Installed:
    def __enter__(self) -> Installed: ...
    def __exit__(self, *error: Any) -> None: ...

def install() -> Installed: ...
def uninstall() -> None: ...
