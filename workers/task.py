"""What a task is: a frozen problem in two halves.

`PublicTask` is all that a sandbox pool ever receives; it holds no test, reference, solution or attack.
`Task` adds the protected half, which only scorers and `rollcage validate` see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from workers.archive import EMPTY, Archive

ALL_TOOLS = ("run", "read_file", "write_file", "edit_file", "submit")


class Split(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


class Scope(StrEnum):
    """What of the final state is graded: the declared workspace, or the whole file system."""

    WORKSPACE = "workspace"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use."""

    cpus: float = 1.0
    memory_mb: int = 512
    storage_mb: int = 256
    inodes: int = 50_000
    pids: int = 64
    open_files: int = 1024
    allow_internet: bool = False


@dataclass(frozen=True, slots=True)
class PublicTask:
    """The half that the agent's side may see.

    `workspace` is the archive of the files that the agent starts with, laid at `workspace_path`.
    `answer_file` is for the plain-text scaffold: when set, a completion becomes the body of that file
    (relative to the workspace); when empty, it becomes a shell command.
    `digest` is over everything in this half.
    """

    task_id: str
    task_set: str
    split: Split
    instruction: str
    workspace: Archive
    workspace_path: str = "/workspace"
    image: str = "host"
    scope: Scope = Scope.WORKSPACE
    tools: tuple[str, ...] = ALL_TOOLS
    limits: Limits = field(default_factory=Limits)
    agent_timeout_s: float = 300.0
    answer_file: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """A verifier and its settings: `kind` and the JSON text of the table that configures it.

    `options_json` is parsed by the verifier of that kind, which reports every fault in it.
    """

    kind: str
    options_json: str = "{}"
    timeout_s: float = 60.0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """A named shell script that is played as the agent: a solution, an attack or an honest variant."""

    name: str
    body: str


@dataclass(frozen=True, slots=True)
class Task:
    """The whole task. `protected` is the archive of the folder's `tests/`, paths relative to it."""

    public: PublicTask
    verifier: VerifierSpec
    protected: Archive = EMPTY
    solution: Script | None = None
    attacks: tuple[Script, ...] = ()
    honest: tuple[Script, ...] = ()
    pass_threshold: float = 1.0
    source: str = ""

    @property
    def task_id(self) -> str:
        return self.public.task_id
