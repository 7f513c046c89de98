"""Puts a task together from its checked pieces, with the digests of its halves.

`PublicTask.digest` covers all that the agent's side may see; `VerifierSpec.digest` covers all that decides a
verdict. A rating that belongs to both starts afresh when either changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass

from workers.archive import EMPTY, Archive
from workers.task import Limits, PublicTask, Script, Task, VerifierSpec
from workers.taskset.settings import Settings


@dataclass(frozen=True, slots=True)
class Pieces:
    """Everything about a task that was found to be without fault."""

    task_id: str
    task_set: str
    source: str
    instruction: str
    workspace: Archive
    settings: Settings
    limits: Limits
    agent_timeout_s: float
    verifier: VerifierSpec
    protected: Archive = EMPTY
    solution: Script | None = None
    attacks: tuple[Script, ...] = ()
    honest: tuple[Script, ...] = ()


def assemble(pieces: Pieces) -> Task:
    settings = pieces.settings
    public = PublicTask(
        task_id=pieces.task_id,
        task_set=pieces.task_set,
        split=settings.split,
        instruction=pieces.instruction,
        workspace=pieces.workspace,
        workspace_path=settings.workspace_path,
        image=settings.image,
        scope=settings.scope,
        tools=settings.tools,
        limits=pieces.limits,
        agent_timeout_s=pieces.agent_timeout_s,
        answer_file=settings.answer_file,
    )
    return Task(
        public=dataclasses.replace(public, digest=digest_of_public(public)),
        verifier=dataclasses.replace(pieces.verifier, digest=digest_of_verifier(pieces)),
        protected=pieces.protected,
        solution=pieces.solution,
        attacks=pieces.attacks,
        honest=pieces.honest,
        pass_threshold=settings.pass_threshold,
        source=pieces.source,
    )


def digest_of_public(public: PublicTask) -> str:
    """sha256 over every field but the digest itself, the workspace by its own digest."""
    fields = {name.name: getattr(public, name.name) for name in dataclasses.fields(public)}
    del fields["digest"]
    return _sha256(
        {**fields, "workspace": public.workspace.digest, "limits": dataclasses.asdict(public.limits)}
    )


def digest_of_verifier(pieces: Pieces) -> str:
    spec = pieces.verifier
    return _sha256(
        {
            "kind": spec.kind,
            "options": json.loads(spec.options_json),
            "timeout_s": spec.timeout_s,
            "protected": pieces.protected.digest,
            "pass_threshold": pieces.settings.pass_threshold,
        }
    )


def digest_of_set(tasks: tuple[Task, ...]) -> str:
    """sha256 over the digests of its tasks: the version of a task set."""
    return _sha256({task.task_id: [task.public.digest, task.verifier.digest] for task in tasks})


def _sha256(fields: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
