"""Every option, with its default, its unit and what it is for.

One frozen section for each part; a part receives its own section, never the root. `options()` lists them all:
`rollcage config --schema` and the checks read the same list, so that what is printed is what holds.
Closed choices are `Literal`, which OmegaConf checks by value. Imports nothing but the standard library.
"""

# ruff: noqa: RUF009 (an option is a dataclass field with its description)
from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

OnBadTask = Literal["error", "skip"]
SplitChoice = Literal["any", "train", "eval"]
PolicyKind = Literal["local", "openai", "script"]
PolicyFlavour = Literal["auto", "vllm", "sglang", "llamacpp", "chat"]
Logprobs = Literal["raw", "processed"]
SandboxKind = Literal["bubblewrap", "docker", "fake"]
Scaffold = Literal["auto", "react", "plain"]
OnMalformedCall = Literal["observe", "end", "ignore"]
AdvantageKind = Literal["mean_std", "mean_only", "leave_one_out", "none"]
ClusterKind = Literal["local", "ray"]
LogLevel = Literal["debug", "info", "warning", "error"]


Bound = float | None


def _facts(doc: str, low: Bound = None, high: Bound = None, above: bool = False) -> dict[str, Any]:
    return {"doc": doc, "low": low, "high": high, "above": above}


def option(default: Any, doc: str, *, low: Bound = None, high: Bound = None, above: bool = False) -> Any:
    """An option of a section. A number lies in [low, high]; with `above`, strictly above `low`.

    `Any`, because a declaration gives a `Field` where the type checker must see the default's type.
    """
    return field(default=default, metadata=_facts(doc, low, high, above))


@dataclass(frozen=True)
class TasksConfig:
    """Which tasks to play."""

    name: str = option("quickstart", "shipped task set, used where tasks.path is empty")
    path: str = option("", "task set of your own: a task folder, a folder of them, a JSONL or a Parquet file")
    split: SplitChoice = option("any", "play only the tasks of this split")
    limit: int | None = option(None, "play only the first so many tasks", low=1)
    on_bad_task: OnBadTask = option("error", "a faulty task stops the run (error) or is left out (skip)")
    max_instruction_bytes: int = option(65_536, "longest instruction that a task may have, bytes", low=1)


@dataclass(frozen=True)
class PolicyConfig:
    """What samples: the embedded model, a server, or a script played as the agent."""

    kind: PolicyKind = option(
        "local", "local: the embedded model; openai: a server; script: files of commands"
    )
    url: str = option("", "openai: base address of the server, such as http://127.0.0.1:8000/v1")
    model: str = option("", "openai: name of the model as the server knows it; empty: the one that it serves")
    flavour: PolicyFlavour = option("auto", "openai: how to ask the server for token ids; auto probes it")
    api_key_env: str = option("OPENAI_API_KEY", "openai: environment variable that holds the key, if any")
    tokenizer: str = option("", "openai: the model's tokenizer.json or its folder, for token-exact episodes")
    logprobs_mode: Logprobs = option("raw", "raw: of the model; processed: of what is sampled from")
    gguf: str = option("", "local: another GGUF model file; empty: the one that is shipped")
    parallel: int = option(4, "local: requests in parallel", low=1, high=256)
    threads: int | None = option(None, "local: CPU threads; null: one a core", low=1)
    context_tokens: int = option(0, "longest prompt plus completion, tokens; 0: as the server says", low=0)
    script: str = option("", "script: shell script, or folder of them, run as the agent and submitted")
    deadline_s: float = option(120.0, "longest wait for one completion, seconds", low=0, above=True)
    attempts: int = option(4, "tries for one completion before the episode fails", low=1, high=20)


@dataclass(frozen=True)
class SandboxConfig:
    """Where an agent's commands run."""

    backend: SandboxKind = option(
        "bubblewrap",
        "bubblewrap: unprivileged namespaces; docker: containers of this host's engine; fake: none, for tests",
    )
    pool_size: int = option(8, "sandboxes at once on each node", low=1, high=10_000)
    uid: int = option(
        64_917, "where the owner is root: the unused user that keepers run as", low=1, high=2**31
    )
    image: str = option("python:3.11-slim", "docker: the image of tasks that name none")
    engine: str = option("", "docker: address of the engine; empty: DOCKER_HOST or the usual socket")
    build_timeout_s: float = option(
        900.0, "docker: longest build of a task's image, seconds", low=0, above=True
    )
    keepers: int | None = option(None, "keeper processes on each node; null: one a core", low=1, high=1_024)
    verify_every: int = option(
        100, "bubblewrap: of so many fresh sandboxes one is read back byte by byte; 0: none", low=0
    )


@dataclass(frozen=True)
class SchedulerConfig:
    """Which tasks are worth playing, measured before they are trained on."""

    filter: bool = option(True, "probe first and set aside the tasks that are never or always solved")
    ratings: str = option("", "run folder or tasks.parquet of an earlier measurement to start from")
    max_probes: int = option(
        4, "one-sided probing rollouts after which a task is set aside", low=1, high=1_000
    )
    explore: float = option(0.1, "share of training groups that go to tasks set aside", low=0, high=1)


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are played, and how many."""

    group_size: int = option(4, "episodes of one task in a group", low=1, high=1_024)
    groups: int | None = option(None, "groups to roll out; null: as many as tasks are kept", low=0)
    concurrency: int = option(8, "episodes in flight in all; no more than there are sandboxes", low=1)
    scaffold: Scaffold = option(
        "auto", "react: JSON tools; plain: a completion is an action; auto: by the policy"
    )
    max_steps: int = option(20, "actions in an episode", low=1, high=10_000)
    max_tokens: int = option(8_192, "sampled tokens in an episode", low=1)
    max_completion_tokens: int = option(1_024, "sampled tokens in one completion", low=1)
    command_timeout_s: float = option(60.0, "longest that one command may run, seconds", low=0, above=True)
    output_limit_bytes: int = option(8_192, "kept of a command's output for the agent to see, bytes", low=256)
    state_limit_bytes: int = option(67_108_864, "largest final state that can be scored, bytes", low=1_024)
    temperature: float = option(1.0, "sampling temperature", low=0, high=10)
    top_p: float = option(1.0, "nucleus sampling; 1: off, as training wants it", low=0, high=1, above=True)
    top_k: int = option(0, "sample from the k likeliest tokens; 0: off, as training wants it", low=0)
    min_p: float = option(
        0.0, "drop tokens below this share of the likeliest one's probability", low=0, high=1
    )
    on_malformed_call: OnMalformedCall = option(
        "observe", "a malformed call is an error observation (observe), the end of the episode, or ignored"
    )
    attempts: int = option(3, "tries for an episode that failed", low=1, high=20)
    deadline_s: float = option(
        600.0, "an episode's whole life, tear-down included, seconds", low=0, above=True
    )
    max_failure_share: float = option(
        0.5, "a run stops when more than this share of episodes failed", low=0, high=1
    )


@dataclass(frozen=True)
class ScorerConfig:
    """Who runs the verifiers."""

    count: int = option(1, "scorer actors", low=1, high=1_000)
    concurrency: int = option(2, "episodes that one scorer judges at once", low=1, high=1_000)
    attempts: int = option(2, "tries for a verdict where the judge's side failed", low=1, high=20)


@dataclass(frozen=True)
class StreamConfig:
    """How groups are written and delivered."""

    part_bytes: int = option(67_108_864, "close a part file once it has this size, bytes", low=1_024)
    part_seconds: float = option(
        30.0, "close a part file at the latest after this time, seconds", low=0, above=True
    )


@dataclass(frozen=True)
class TrainerConfig:
    """What the trainer wants to find in a group."""

    advantage: AdvantageKind = option("mean_std", "how a reward is set against its group")


@dataclass(frozen=True)
class ClusterConfig:
    """Where the actors live."""

    kind: ClusterKind = option("local", "local: a Ray node that ends with the run; ray: a cluster that is up")
    address: str = option("auto", "ray: address of the cluster")
    num_cpus: int | None = option(None, "local: CPUs that Ray counts with; null: as there are", low=1)


@dataclass(frozen=True)
class MetricsConfig:
    """Prometheus endpoints of the long-lived actors."""

    enabled: bool = option(True, "serve /metrics on every long-lived actor")
    host: str = option("127.0.0.1", "address to listen on; anything but loopback shows them to the network")
    port: int = option(
        0, "port of the conductor; 0: any free one, as for the other actors", low=0, high=65_535
    )


@dataclass(frozen=True)
class Config:
    """The root. Only the composition root sees it whole.

    `run_dir` is the run's own folder, empty for runs/<run_id>; `run_id` is made up where it is empty.
    Neither is taken from a file: repeating a run is a new run.
    """

    tasks: TasksConfig = field(default_factory=TasksConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    seed: int = option(0, "every random choice comes from this", low=0, high=2**31 - 1)
    labels: dict[str, str] = field(
        default_factory=dict, metadata=_facts("words of your own on the run: +labels.NAME=WORD")
    )
    run_dir: str = option("", "the run's own folder; empty: runs/<run_id>")
    run_id: str = option("", "name of the run; empty: made of the time and a random word")
    log_level: LogLevel = option("info", "least severe line in the run folder's logs")


TABLE = "table of texts"
GROUPS = tuple(name for name, hint in get_type_hints(Config).items() if dataclasses.is_dataclass(hint))

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Option:
    """One option as data. `choices` is empty where any value of the type will do."""

    key: str
    type_name: str
    default: Value
    doc: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    above: bool = False

    @property
    def wanted(self) -> str:
        """What a value must be, for people."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        article = "an" if self.type_name[0] in "aeiou" else "a"
        return f"{article} {self.type_name}{self._bounds}"

    @property
    def _bounds(self) -> str:
        if self.low is None:
            return ""
        least = f"above {self.low}" if self.above else f"at least {self.low}"
        return f", {least}" + (f" and at most {self.high}" if self.high is not None else "")

    def admits(self, value: Value) -> bool:
        """Whether a value of the right type lies in the range. NaN lies in none."""
        if value is None or isinstance(value, str) or self.low is None:
            return True
        is_high_enough = value > self.low if self.above else value >= self.low
        return is_high_enough and value <= (self.high if self.high is not None else float(2**63))


def options(section: type = Config, prefix: str = "") -> Iterator[Option]:
    """Every option in the order of declaration; keys are dotted."""
    hints = get_type_hints(section)
    for item in dataclasses.fields(section):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from options(hint, f"{prefix}{item.name}.")
        else:
            type_name, choices = _describe(hint)
            facts = item.metadata
            yield Option(
                key=prefix + item.name,
                type_name=type_name,
                default=None if type_name == TABLE else cast(Value, item.default),
                doc=facts["doc"],
                choices=choices,
                low=facts["low"],
                high=facts["high"],
                above=facts["above"],
            )


_NAMES = {int: "integer", float: "number", bool: "boolean", str: "text"}


def _describe(hint: object) -> tuple[str, tuple[str, ...]]:
    """The type of an option for people, and its choices."""
    if get_origin(hint) is Literal:
        return "choice", get_args(hint)
    if get_origin(hint) is dict:
        return TABLE, ()
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = (part for part in get_args(hint) if part is not type(None))
        name, choices = _describe(inner)
        return f"{name} or null", choices
    return _NAMES[cast(type, hint)], ()
