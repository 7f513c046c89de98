from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policy.servers import chat_answer, sglang_answer, vllm_answer
from workers.errors import PolicyError
from workers.policy.chat import Chat
from workers.policy.dialect import Dialect
from workers.policy.http import Endpoint, Server
from workers.policy.llamacpp import LlamaCpp
from workers.policy.protocol import Completion, Sampling
from workers.policy.rescore import certain_matches, logprob_of
from workers.policy.sglang import SgLang
from workers.policy.vllm import Vllm
from workers.policy.wire import Json, parse_object, version_number
from workers.trajectory import LogprobsMode, Message

PROMPT = np.asarray([1, 70, 71], np.int32)
LLAMACPP = {
    "content": "x",
    "tokens": [80, 2],
    "tokens_evaluated": 3,
    "stop_type": "eos",
    "id_slot": 0,
    "completion_probabilities": [{"id": 80, "logprob": -0.5}, {"id": 2, "logprob": -0.1}],
}
ANSWERS = {
    "vllm": vllm_answer([80, 2]).body,
    "sglang": sglang_answer([80, 2], 3).body,
    "chat": chat_answer("x", [{"function": {"name": "run", "arguments": "{}"}}]).body,
    "llamacpp": LLAMACPP,
}
junk: st.SearchStrategy[object] = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats()
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
)


class Answering(Server):
    """A server whose every answer is given."""

    def __init__(self, body: object) -> None:
        super().__init__(Endpoint("http://127.0.0.1:9"))
        self._body = body

    async def post(
        self, path: str, body: Json, deadline_s: float, headers: dict[str, str] | None = None
    ) -> Json:
        return parse_object(json.dumps(self._body).encode())


async def ask(flavour: str, body: object) -> Completion:
    server = Answering(body)
    try:
        if flavour == "chat":
            return await Chat(server, "m").sample((Message("user", "x"),), "[]", Sampling(), 1.0)
        dialects: dict[str, Dialect] = {
            "vllm": Vllm(server, "m"),
            "sglang": SgLang(server),
            "llamacpp": LlamaCpp(server, LogprobsMode.RAW),
        }
        return await dialects[flavour].sample(PROMPT, Sampling(), "s", 1.0, 0)
    finally:
        await server.close()


@st.composite
def damaged(draw: st.DrawFn, body: object) -> object:
    """The answer with one value somewhere in it replaced or removed."""
    root: object = json.loads(json.dumps(body))
    at = root
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
        key = draw(st.sampled_from(keys))
        child = at[key]  # type: ignore[index]
        if isinstance(child, dict | list) and child and draw(st.integers(0, 3)):
            at = child
            continue
        if draw(st.booleans()):
            del at[key]  # type: ignore[attr-defined]
        else:
            at[key] = draw(junk)  # type: ignore[index]
        return root


@pytest.mark.parametrize("flavour", ANSWERS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_answer_is_whole_all_the_same_or_a_policy_error(flavour: str, data: st.DataObject) -> None:
    body = data.draw(damaged(ANSWERS[flavour]))
    try:
        completion = asyncio.run(ask(flavour, body))
    except PolicyError:
        return
    if completion.token_ids is not None and completion.logprobs is not None:
        n = len(completion.token_ids)
        assert n == len(completion.logprobs) > 0
        assert np.isfinite(completion.logprobs).all()
        assert [completion.versions[0].start, completion.versions[-1].end] == [0, n]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
def test_only_certain_matches_are_taken(ids: list[int], data: st.DataObject) -> None:
    """Whatever tokens were left out, an entry is never given to another token than it is of."""
    kept = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    places = [at for at, keeps in enumerate(kept) if keeps]
    matches = certain_matches(ids, [ids[at] for at in places])
    assert matches is not None
    for at, entry in enumerate(matches):
        assert entry is None or places[entry] == at


def test_entries_of_other_tokens_match_nothing() -> None:
    assert certain_matches([1, 2, 3], [1, 4]) is None


def test_a_cut_distribution_is_normalised_over_what_is_left() -> None:
    ids, raw = np.asarray([5, 6, 7]), np.log(np.asarray([0.2, 0.5, 0.3]))
    assert logprob_of(6, ids, raw, Sampling()) == pytest.approx(np.log(0.5))
    assert logprob_of(6, ids, raw, Sampling(top_k=2)) == pytest.approx(np.log(0.5 / 0.8))
    assert logprob_of(7, ids, raw, Sampling(top_p=0.6)) == pytest.approx(np.log(0.3 / 0.8))
    assert logprob_of(5, ids, raw, Sampling(min_p=0.5)) == -np.inf
    squared = 0.25 + 0.09 + 0.04
    assert logprob_of(7, ids, raw, Sampling(temperature=0.5)) == pytest.approx(np.log(0.09 / squared))
    assert logprob_of(6, ids, raw, Sampling(temperature=0.0)) == 0.0


@pytest.mark.parametrize(
    ("label", "number"),
    [
        ("12", 12),
        ("v3", 3),
        (7, 7),
        ("default", None),
        (None, None),
        (True, None),
        ("1.5", None),
        ("²", None),
    ],
)
def test_a_version_label_is_a_number_or_none(label: object, number: int | None) -> None:
    assert version_number(label) == number
