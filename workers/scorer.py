"""Scores one submission in sandboxes of the scorer's own.

A verdict's numbers are finite and in the range that its verifier declared; `passed` is decided here, by the
task's threshold. A final state that passed a cap is the agent's own doing and scores 0. What has no verdict
raises: VerifierError from the judge's side, SandboxError from the host's. Retrying is the caller's business.
"""

from __future__ import annotations

import asyncio
import math
import os
from dataclasses import dataclass, replace

from workers.archive import Archive, unpack
from workers.errors import VerifierError
from workers.sandbox.protocol import SandboxBackend
from workers.task import Task
from workers.trajectory import Protection, RewardPart, Verdict
from workers.verifier import registry
from workers.verifier.protocol import Submission

MAX_PATH_BYTES = 2048
GRACE_S = 60.0
"""On top of a verifier's own time: for making and closing its sandboxes."""


@dataclass(frozen=True, slots=True)
class Scorer:
    sandboxes: SandboxBackend

    async def score(self, task: Task, submission: Submission) -> Verdict:
        if submission.state is None:
            return _zero("the final state passed a cap")
        if _has_overlong_path(submission.state):
            return _zero(f"the final state has a path of more than {MAX_PATH_BYTES} bytes")
        verifier = registry.build(task)
        limit_s = 2 * task.verifier.timeout_s + GRACE_S
        try:
            async with asyncio.timeout(limit_s):
                verdict = await verifier.verify(submission, self.sandboxes)
        except TimeoutError as error:
            raise VerifierError("judge_timeout", f"no verdict within {limit_s:g} s") from error
        return _checked(verdict, task.pass_threshold)


def _zero(why: str) -> Verdict:
    part = RewardPart("state_too_large", 0.0, detail=why)
    return Verdict(0.0, 0.0, passed=False, protection=Protection.VALUES, parts=(part,))


def _has_overlong_path(state: Archive) -> bool:
    """Such a path can be made step by step, but no sandbox could lay it again."""
    return any(len(os.fsencode(entry.path)) > MAX_PATH_BYTES for entry in unpack(state))


def _checked(verdict: Verdict, threshold: float) -> Verdict:
    if not (math.isfinite(verdict.reward) and math.isfinite(verdict.score)):
        raise VerifierError("reward_malformed", "the verdict is not a finite number")
    return replace(verdict, passed=verdict.score >= threshold)
