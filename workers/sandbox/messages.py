"""What the owner asks of a keeper, as typed facts over the wire's JSON. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TypeVar

from workers.sandbox.wire import Json
from workers.task import Limits

SEALED = "sealed-"
"""How the names of sealed workspaces begin; every other name of a layer is an archive's digest."""


class Operation(StrEnum):
    SETUP = "setup"
    IMPORT = "import"
    CREATE = "create"
    ATTEND = "attend"
    PROBE = "probe"
    EXEC = "exec"
    READ = "read"
    WRITE = "write"
    FREEZE = "freeze"
    DIFF = "diff"
    SEAL = "seal"
    EXPORT = "export"
    DIGEST = "digest"
    DISCARD = "discard"
    VERIFY = "verify"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Setup:
    """Once per keeper. `etc` is the digest of the layer shown at /etc; blobs: none."""

    uid: int
    image_digest: str
    etc: str
    binds: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    path: str
    first_process: str
    layer_limit_bytes: int
    create_timeout_s: float


@dataclass(frozen=True, slots=True)
class Import:
    """Blobs: the archive."""

    digest: str


@dataclass(frozen=True, slots=True)
class Mount:
    path: str
    layer: str


@dataclass(frozen=True, slots=True)
class Create:
    """`above` are the archives and sealed workspaces of a snapshot, over the spec's own layers."""

    slot: int
    workspace_path: str
    layers: tuple[str, ...]
    above: tuple[str, ...]
    mounts: tuple[Mount, ...]
    limits: Limits


@dataclass(frozen=True, slots=True)
class Attend:
    """From the keeper to an attendant, with the pidfd of its slot's first process."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether commands can enter a slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class Exec:
    """Blobs: the arguments and variables joined by NUL. Descriptors: reply, spill, and stdin if there is one."""

    slot: int
    argument_count: int
    cwd: str
    timeout_s: float
    output_limit_bytes: int
    output_kill_bytes: int
    open_files: int | None
    cpu_s: int | None


@dataclass(frozen=True, slots=True)
class Read:
    """Descriptors: reply and spill."""

    slot: int
    path: str
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Write:
    """Blobs: the body. Descriptors: reply and spill."""

    slot: int
    path: str


@dataclass(frozen=True, slots=True)
class Freeze:
    slot: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Diff:
    slot: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Seal:
    """End a slot and keep its workspace by a name, with all that it stands on held for it."""

    slot: int
    name: str


@dataclass(frozen=True, slots=True)
class Export:
    """What a snapshot changes against its spec's layers."""

    layers: tuple[str, ...]
    above: tuple[str, ...]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Digest:
    """The content of one sealed workspace."""

    name: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Let go of what was held for a snapshot."""

    layers: tuple[str, ...]
    above: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verify:
    slot: int


@dataclass(frozen=True, slots=True)
class Close:
    slot: int


Request = (
    Setup
    | Import
    | Create
    | Attend
    | Probe
    | Exec
    | Read
    | Write
    | Freeze
    | Diff
    | Seal
    | Export
    | Digest
    | Discard
    | Verify
    | Close
)
T = TypeVar(
    "T",
    Setup,
    Import,
    Create,
    Attend,
    Probe,
    Exec,
    Read,
    Write,
    Freeze,
    Diff,
    Seal,
    Export,
    Digest,
    Discard,
    Verify,
    Close,
)


def encode(operation: Operation, request: Request) -> dict[str, Json]:
    """The head of a request."""
    return {"op": operation.value, "request": asdict(request)}


def decode(kind: type[T], head: Mapping[str, Json]) -> T:
    """The request in a head. The owner is trusted: a wrong shape is a bug and raises TypeError or KeyError."""
    body = head["request"]
    assert isinstance(body, dict)
    values = {field.name: _revive(field.name, body[field.name]) for field in fields(kind)}
    return kind(**values)  # type: ignore[arg-type]


def _revive(name: str, value: Json) -> object:
    if name == "limits" and isinstance(value, dict):
        return Limits(**value)  # type: ignore[arg-type]
    if name == "mounts" and isinstance(value, list):
        return tuple(Mount(**item) for item in value)  # type: ignore[arg-type]
    if isinstance(value, list):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return value
