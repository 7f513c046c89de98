"""Small tasks, and policies that say what they are told to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.agent.backends import files
from workers.archive import Archive
from workers.errors import PolicyError
from workers.policy.protocol import Completion, Renderer, Sampling, VersionSpan
from workers.task import PublicTask, Split, Task, VerifierSpec
from workers.trajectory import LogprobsMode, Message

END = 2


def public_task(workspace: Archive | None = None, **changes: object) -> PublicTask:
    task = PublicTask(
        task_id="t1",
        task_set="tests",
        split=Split.TRAIN,
        instruction="Write 42 into answer.txt.",
        workspace=workspace or files(note="hello\n"),
        agent_timeout_s=60.0,
    )
    return replace(task, **changes)  # type: ignore[arg-type]


def whole_task(public: PublicTask | None = None) -> Task:
    return Task(public=public or public_task(), verifier=VerifierSpec("match"))


class LetterRenderer:
    """A token is a character (its code plus 100); messages are set between 1 and 2 like ChatML."""

    tokenizer_sha256 = "letters"

    async def opening(self, messages: tuple[Message, ...], tools_json: str) -> NDArray[np.int32]:
        ids = [number for message in messages for number in (1, *letters(message.content), END)]
        return np.asarray([*ids, 1], np.int32)

    async def continuation(self, completion: Completion, observation: Message) -> NDArray[np.int32]:
        closing = [] if completion.finish_reason == "stop" else [END]
        return np.asarray([*closing, 1, *letters(observation.content), END, 1], np.int32)


class SayingPolicy:
    """Says the given texts in turn; as tokens where `renderer` is set, else in text mode.

    A text is cut at `max_tokens`, as a server does. An exception in the list is raised.
    """

    def __init__(
        self,
        texts: Sequence[str | Exception],
        context_tokens: int = 10_000,
        renderer: Renderer | None = None,
        version_at: int | None = None,
    ) -> None:
        self._texts = list(texts)
        self.context_tokens = context_tokens
        self.renderer = renderer
        self.logprobs_mode = LogprobsMode.RAW if renderer else LogprobsMode.NONE
        self.prompts: list[NDArray[np.int32]] = []
        self.conversations: list[tuple[Message, ...]] = []
        self._version_at = version_at

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def version(self) -> int:
        return 7

    async def sample_tokens(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, session: str, deadline_s: float
    ) -> Completion:
        if len(prompt_ids) + sampling.max_tokens > self.context_tokens or sampling.max_tokens < 1:
            raise PolicyError("endpoint_error", "the request does not fit")
        self.prompts.append(prompt_ids)
        text = self._next()
        ids = [*letters(text), END][: sampling.max_tokens]
        finish = "stop" if ids[-1] == END else "length"
        spans: tuple[VersionSpan, ...] = (VersionSpan(0, len(ids), 7),)
        if self._version_at is not None and len(ids) > self._version_at:
            spans = (VersionSpan(0, self._version_at, 7), VersionSpan(self._version_at, len(ids), 8))
        return Completion(
            text="".join(chr(number - 100) for number in ids if number != END),
            finish_reason=finish,
            request_id=f"r{len(self.prompts)}",
            token_ids=np.asarray(ids, np.int32),
            logprobs=np.full(len(ids), -0.5, np.float32),
            versions=spans,
        )

    async def sample_text(
        self,
        messages: tuple[Message, ...],
        tools_json: str,
        sampling: Sampling,
        session: str,
        deadline_s: float,
    ) -> Completion:
        self.conversations.append(messages)
        return Completion(self._next(), "stop", "r", None, None, (VersionSpan(0, 0, 7),))

    def _next(self) -> str:
        said = self._texts.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


def letters(text: str) -> list[int]:
    return [ord(character) + 100 for character in text]
