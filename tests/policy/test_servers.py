from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.policy.servers import (
    Replay,
    Reply,
    chat_answer,
    models,
    serve,
    sglang_answer,
    vllm_answer,
)
from tests.policy.tokens import make_folder
from workers.agent.call import read_call
from workers.agent.react import find_call
from workers.errors import ConfigError, PolicyError
from workers.policy.config import Flavour, OpenAIPolicyConfig
from workers.policy.factory import make_policy
from workers.policy.protocol import Completion, Sampling, VersionSpan
from workers.policy.served import ServedPolicy
from workers.trajectory import LogprobsMode, Message

PROMPT = np.asarray([1, 70, 71], np.int32)
Route = Reply | list[Reply] | Callable[[dict[str, object]], Reply]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tokenizer"))


@asynccontextmanager
async def policy_at(url: str, folder: Path, **changes: object) -> AsyncIterator[ServedPolicy]:
    settings = {"url": url, "tokenizer": str(folder), "retries": 1, "start_timeout_s": 5.0, **changes}
    policy = make_policy(OpenAIPolicyConfig(**settings))  # type: ignore[arg-type]
    try:
        await policy.start()
        yield policy
    finally:
        await policy.close()
        await policy.close()


def vllm(answer: Route, **routes: Route) -> Replay:
    return Replay({"GET /v1/models": models("vllm"), "POST /v1/completions": answer, **routes})


def sglang(answer: Route, **routes: Route) -> Replay:
    return Replay({"GET /v1/models": models("sglang"), "POST /generate": answer, **routes})


async def sample(replay: Replay, folder: Path, deadline_s: float = 5.0, **changes: object) -> Completion:
    with serve(replay):
        async with policy_at(replay.url, folder, **changes) as policy:
            return await policy.sample_tokens(PROMPT, Sampling(max_tokens=8, seed=3), "session-1", deadline_s)


async def test_vllm_gives_the_ids_and_logprobs_that_it_sampled(folder: Path) -> None:
    replay = vllm(vllm_answer([80, 81, 2], prompt_token_ids=PROMPT.tolist()))
    completion = await sample(replay, folder)
    assert completion.token_ids is not None
    assert completion.logprobs is not None
    assert completion.token_ids.tolist() == [80, 81, 2]
    assert completion.logprobs.tolist() == [-0.25, -0.5, -0.75]
    assert (completion.finish_reason, completion.request_id) == ("stop", "cmpl-1")
    assert completion.versions == (VersionSpan(0, 3, 3),)
    (request,) = replay.sent("/v1/completions")
    asked = request.body
    assert asked["prompt"] == [1, 70, 71]
    assert (asked["return_token_ids"], asked["return_weight_versions"], asked["logprobs"]) == (True, True, 0)
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert {name: asked[name] for name in neutral} == neutral
    assert (asked["model"], asked["max_tokens"], asked["seed"]) == ("org/model", 8, 3)
    assert request.headers["X-Session-ID"] == "session-1"


async def test_sglang_gives_the_ids_and_logprobs_that_it_sampled(folder: Path) -> None:
    replay = sglang(sglang_answer([80, 81, 2], 3))
    completion = await sample(replay, folder)
    assert completion.token_ids is not None
    assert completion.logprobs is not None
    assert completion.token_ids.tolist() == [80, 81, 2]
    assert completion.logprobs.tolist() == [-0.5, -1.0, -1.5]
    assert completion.versions == (VersionSpan(0, 3, 5),)
    (request,) = replay.sent("/generate")
    assert request.body["input_ids"] == [1, 70, 71]
    assert request.body["return_logprob"] is True
    params = request.body["sampling_params"]
    assert isinstance(params, dict)
    assert (params["temperature"], params["top_k"], params["max_new_tokens"]) == (1.0, -1, 8)
    assert request.headers["X-SMG-Routing-Key"] == "session-1"


@pytest.mark.parametrize("server", [vllm, sglang])
async def test_a_swap_of_weights_inside_a_response_splits_its_spans(
    server: Callable[[Route], Replay], folder: Path
) -> None:
    spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}]
    answer = vllm_answer([80, 81, 2], weight_versions=spans)
    if server is sglang:
        answer = sglang_answer([80, 81, 2], 3, weight_versions=spans)
    completion = await sample(server(answer), folder)
    assert completion.versions == (VersionSpan(0, 2, 3), VersionSpan(2, 3, 4))


async def test_servers_that_tell_no_version_get_the_pushed_one(folder: Path) -> None:
    replay = vllm(vllm_answer([80], weight_versions=None))
    with serve(replay):
        async with policy_at(replay.url, folder, version=11) as policy:
            assert await policy.version() == 11
            policy.push_version(12)
            assert await policy.version() == 12
            completion = await policy.sample_tokens(PROMPT, Sampling(), "s", 5.0)
    assert completion.versions == (VersionSpan(0, 1, 12),)
    assert len(replay.sent("/weight_info")) == 1  # a server that does not know the route is not asked again


async def test_the_version_in_force_is_read_from_the_server(folder: Path) -> None:
    known = {"GET /weight_info": Reply({"weight_version": "17"})}
    with serve(vllm(vllm_answer([80]), **known)) as replay:
        async with policy_at(replay.url, folder) as policy:
            assert await policy.version() == 17
    known = {"GET /model_info": Reply({"model_path": "m", "weight_version": "v18"})}
    with serve(sglang(sglang_answer([80], 3), **known)) as replay:
        async with policy_at(replay.url, folder) as policy:
            assert await policy.version() == 18


async def test_an_aborted_completion_is_resumed_and_keeps_what_was_sampled(folder: Path) -> None:
    first = vllm_answer([80, 81], finish_reason="abort")
    empty = vllm_answer([], finish_reason="abort", weight_versions=[], logprobs=None)
    last = vllm_answer([82, 2], weight_versions=[{"version": "4", "start": 0, "end": 2}])
    replay = vllm([first, empty, last])
    completion = await sample(replay, folder)
    assert completion.token_ids is not None
    assert completion.token_ids.tolist() == [80, 81, 82, 2]
    assert completion.versions == (VersionSpan(0, 2, 3), VersionSpan(2, 4, 4))
    assert completion.finish_reason == "stop"
    bodies = [request.body for request in replay.sent("/v1/completions")]
    assert [body["prompt"] for body in bodies] == [[1, 70, 71], [1, 70, 71, 80, 81], [1, 70, 71, 80, 81]]
    assert [body["max_tokens"] for body in bodies] == [8, 6, 6]


async def test_a_server_that_only_aborts_is_a_failure_within_the_deadline(folder: Path) -> None:
    answer = vllm_answer([], finish_reason="abort", weight_versions=[], logprobs=None)
    started = time.monotonic()
    with pytest.raises(PolicyError) as caught:
        await sample(vllm(answer), folder, deadline_s=0.5)
    assert caught.value.cause in ("aborted", "endpoint_timeout")
    assert time.monotonic() - started < 4


FAULTS: dict[str, tuple[Reply, Reply, str]] = {
    "500": (Reply({"error": "x"}, 500), Reply({"error": "x"}, 500), "endpoint_error"),
    "429": (Reply({"error": "x"}, 429), Reply({"error": "x"}, 429), "endpoint_error"),
    "401": (Reply({"error": "x"}, 401), Reply({"error": "x"}, 401), "endpoint_error"),
    "slow": (Reply({}, delay_s=1.5), Reply({}, delay_s=1.5), "endpoint_timeout"),
    "broken json": (Reply(b'{"choices": [{'), Reply(b"<html>"), "broken_json"),
    "no object": (Reply([1]), Reply("x"), "broken_json"),
    "deep json": (Reply(b"[" * 50_000), Reply(b"[" * 50_000), "broken_json"),
    "not utf-8": (Reply(b'{"a": "\xff"}'), Reply(b'{"a": "\xff"}'), "broken_json"),
    "no logprobs": (
        vllm_answer([80, 2], logprobs=None),
        sglang_answer([80, 2], 3, output_token_logprobs=[]),
        "no_logprobs",
    ),
    "a missing logprob": (
        vllm_answer([80, 2], logprobs={"token_logprobs": [-0.5, None]}),
        sglang_answer([80, 2], 3, output_token_logprobs=[[-0.5, 80, None], [None, 2, None]]),
        "no_logprobs",
    ),
    "a logprob too few": (
        vllm_answer([80, 2], logprobs={"token_logprobs": [-0.5]}),
        sglang_answer([80, 2], 3, output_token_logprobs=[[-0.5, 80, None], [-0.5]]),
        "no_logprobs bad_response",
    ),
    "an infinite logprob": (
        Reply(json.dumps(vllm_answer([80]).body).replace("-0.25", "-Infinity").encode()),
        Reply(json.dumps(sglang_answer([80], 3).body).replace("-0.5", "NaN").encode()),
        "no_logprobs",
    ),
    "no tokens": (vllm_answer([]), sglang_answer([], 3, completion_tokens=0), "bad_response"),
    "no ids": (
        vllm_answer([80], token_ids=None),
        sglang_answer([80], 3, output_token_logprobs=[[-0.5, None, None]]),
        "bad_response",
    ),
    "another prompt": (
        vllm_answer([80], prompt_token_ids=[1, 70]),
        sglang_answer([80], 4),
        "bad_response",
    ),
    "an unknown ending": (
        vllm_answer([80], finish_reason="error"),
        sglang_answer([80], 3, finish_reason={"type": "error"}),
        "bad_response",
    ),
    "spans with a hole": (
        vllm_answer([80, 2], weight_versions=[{"version": "1", "start": 1, "end": 2}]),
        sglang_answer([80, 2], 3, weight_versions=[{"version": "1", "start": 0, "end": 1}]),
        "bad_response",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("flavour", ["vllm", "sglang"])
async def test_a_faulty_server_is_a_failure_with_its_cause(flavour: str, fault: str, folder: Path) -> None:
    of_vllm, of_sglang, causes = FAULTS[fault]
    replay = vllm(of_vllm) if flavour == "vllm" else sglang(of_sglang)
    with pytest.raises(PolicyError) as caught:
        await sample(replay, folder, deadline_s=1.0)
    assert caught.value.cause in causes.split()


async def test_an_empty_list_of_choices_has_a_cause_of_its_own(folder: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        await sample(vllm(Reply({"id": "x", "choices": []})), folder)
    assert caught.value.cause == "no_choices"


async def test_what_says_later_is_retried_and_our_own_mistakes_are_not(folder: Path) -> None:
    busy = [Reply({"error": "busy"}, 503), vllm_answer([80, 2])]
    replay = vllm(busy)
    await sample(replay, folder)
    assert len(replay.sent("/v1/completions")) == 2
    replay = vllm(Reply({"error": "bad"}, 400))
    with pytest.raises(PolicyError):
        await sample(replay, folder)
    assert len(replay.sent("/v1/completions")) == 1


async def test_an_endpoint_that_is_down_is_unreachable_and_says_where(folder: Path) -> None:
    with serve(vllm(vllm_answer([80]))) as replay:
        url = replay.url
    with pytest.raises(PolicyError) as caught:
        async with policy_at(url, folder):
            pass
    assert caught.value.cause == "endpoint_unreachable"
    assert url.removesuffix("/v1") in caught.value.detail


async def test_a_server_that_dies_between_is_unreachable(folder: Path) -> None:
    with serve(vllm(vllm_answer([80, 2]))) as replay:
        policy = make_policy(OpenAIPolicyConfig(replay.url, tokenizer=str(folder), retries=1))
        await policy.start()
    with pytest.raises(PolicyError) as caught:
        await policy.sample_tokens(PROMPT, Sampling(), "s", 5.0)
    await policy.close()
    assert caught.value.cause == "endpoint_unreachable"


@pytest.mark.parametrize("url", ["localhost:8000", "", "ftp://x", "http://[bad"])
async def test_a_url_that_is_none_is_refused(url: str, folder: Path) -> None:
    with pytest.raises((ConfigError, PolicyError)):
        async with policy_at(url, folder):
            pass


async def test_token_mode_without_a_tokenizer_is_refused_with_both_ways_out(folder: Path) -> None:
    with (
        serve(vllm(vllm_answer([80]))) as replay,
        pytest.raises(ConfigError, match=r"policy\.tokenizer") as caught,
    ):
        async with policy_at(replay.url, folder, tokenizer=""):
            pass
    assert "flavour=chat" in caught.value.remedy


async def test_an_unknown_model_is_refused_with_those_that_there_are(folder: Path) -> None:
    with serve(vllm(vllm_answer([80]))) as replay, pytest.raises(ConfigError, match="org/model"):
        async with policy_at(replay.url, folder, model="other"):
            pass


async def test_the_key_is_sent_and_never_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TEST_KEY", "sesame")
    with serve(vllm(Reply({"error": "x"}, 401))) as replay:
        async with policy_at(replay.url, folder, api_key_env="A_TEST_KEY") as policy:
            with pytest.raises(PolicyError) as caught:
                await policy.sample_tokens(PROMPT, Sampling(), "s", 5.0)
    assert replay.requests[0].headers["Authorization"] == "Bearer sesame"
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7),
        Sampling(top_p=0.9),
        Sampling(top_k=40),
        Sampling(min_p=0.05),
        Sampling(stop=("x",)),
    ],
)
async def test_sampling_under_which_raw_logprobs_would_lie_is_refused(
    sampling: Sampling, folder: Path
) -> None:
    with serve(vllm(vllm_answer([80, 2]))) as replay:
        async with policy_at(replay.url, folder) as policy:
            with pytest.raises(ConfigError):
                await policy.sample_tokens(PROMPT, sampling, "s", 5.0)
    assert replay.sent("/v1/completions") == []


async def test_processed_logprobs_are_taken_only_from_a_server_that_gives_them(folder: Path) -> None:
    raw = vllm_answer([80, 81, 82, 83])
    processed = vllm_answer([80] * 4, logprobs={"token_logprobs": [0.0, 0.0, -1e-6, 0.0]})
    mode = {"logprobs_mode": LogprobsMode.PROCESSED}
    with serve(vllm(raw)) as replay, pytest.raises(ConfigError, match="raw"):
        async with policy_at(replay.url, folder, **mode):
            pass
    with serve(vllm(processed)) as replay:
        async with policy_at(replay.url, folder, **mode) as policy:
            await policy.sample_tokens(PROMPT, Sampling(temperature=0.7), "s", 5.0)


async def test_sglang_refuses_to_cut_the_distribution(folder: Path) -> None:
    with serve(sglang(sglang_answer([80], 3))) as replay:
        async with policy_at(replay.url, folder, logprobs_mode=LogprobsMode.PROCESSED) as policy:
            await policy.sample_tokens(PROMPT, Sampling(temperature=0.7), "s", 5.0)
            with pytest.raises(ConfigError):
                await policy.sample_tokens(PROMPT, Sampling(top_p=0.7), "s", 5.0)


async def test_chat_is_text_mode_and_carries_tool_calls(folder: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"command": "ls"}'}}
    replay = Replay(
        {
            "GET /v1/models": models("somebody"),
            "POST /v1/chat/completions": [
                chat_answer(None, [call], "tool_calls"),
                chat_answer("Done.", []),
                Reply({"choices": []}),
            ],
        }
    )
    tools = json.dumps([{"type": "function", "function": {"name": "run"}}])
    with serve(replay):
        async with policy_at(replay.url, folder) as policy:
            assert policy.renderer is None
            assert policy.logprobs_mode is LogprobsMode.NONE
            first = await policy.sample_text((Message("user", "go"),), tools, Sampling(), "s", 5.0)
            assert read_call(find_call(first.text)).texts == {"command": "ls"}
            assert (first.token_ids, first.finish_reason) == (None, "tool_calls")
            conversation = (
                Message("user", "go"),
                Message("assistant", first.text),
                Message("tool", "a b"),
                Message("assistant", "no call"),
                Message("tool", "malformed"),
            )
            await policy.sample_text(conversation, "[]", Sampling(stop=("X",)), "s", 5.0)
            with pytest.raises(PolicyError) as caught:
                await policy.sample_text((Message("user", "go"),), "[]", Sampling(), "s", 5.0)
    assert caught.value.cause == "no_choices"
    asked, again, _ = (request.body for request in replay.sent("/v1/chat/completions"))
    assert (asked["tools"], again.get("tools"), again["stop"]) == (json.loads(tools), None, ["X"])
    messages = again["messages"]
    assert isinstance(messages, list)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "run", "arguments": '{"command": "ls"}'}


async def test_the_flavour_can_be_said(folder: Path) -> None:
    replay = Replay(
        {"GET /v1/models": models("vllm"), "POST /v1/chat/completions": chat_answer("hi")},
    )
    with serve(replay):
        async with policy_at(replay.url, folder, flavour=Flavour.CHAT, tokenizer="") as policy:
            said = await policy.sample_text((Message("user", "go"),), "[]", Sampling(), "s", 5.0)
    assert said.text == "hi"
