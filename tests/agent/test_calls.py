from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workers.agent.call import TOOLS, MalformedCall, call_json, read_call, schemas_json
from workers.agent.output import clean_file, clean_output, clip, whole_unicode
from workers.agent.plain import first_block
from workers.agent.react import find_call

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
near_calls = st.fixed_dictionaries(
    {"name": st.sampled_from([tool.name for tool in TOOLS]) | json_values, "arguments": json_values}
)
call_texts = (
    st.text()
    | json_values.map(json.dumps)
    | near_calls.map(json.dumps)
    | st.text().map(lambda text: f"<tool_call>{text}</tool_call>")
    | st.text().map(lambda text: f"```json\n{text}\n```")
)


@given(call_texts)
@settings(max_examples=400, deadline=None)
@example("\ud800")
@example('{"name": "run", "arguments": {"command": "\\ud800"}}')
@example("<tool_call>" * 500)
@example("{" * 5000 + "}")
@example('{"name": "submit", "arguments": null}')
def test_whatever_the_text_it_is_a_call_or_malformed(text: str) -> None:
    told = outcome(text)
    assert told
    told.encode()


def outcome(text: str) -> str:
    """What comes of a text: the call's arguments, or what the agent is told."""
    try:
        return read_call(find_call(text)).arguments_json
    except MalformedCall as malformed:
        return malformed.message


@given(st.text(), st.text())
@settings(deadline=None)
def test_a_call_that_we_write_is_read_back(path: str, content: str) -> None:
    path = path.replace("\0", "")
    call = read_call(call_json("write_file", path=path, content=content))
    assert call.texts == {"path": path, "content": content}


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>',
        'I think so.\n<tool_call>{"name": "submit", "arguments": {}}',
        '```json\n{"name": "submit", "arguments": {}}\n```\nDone.',
        '{"name": "submit", "arguments": {}}',
        'First {braces}, then the call: {"name": "submit", "arguments": {}}\n',
        '{"name": "submit"}',
    ],
)
def test_a_call_is_found_in_the_forms_that_models_write(text: str) -> None:
    assert read_call(find_call(text)).name == "submit"


def test_two_calls_at_once_are_malformed() -> None:
    call = '<tool_call>{"name": "submit", "arguments": {}}</tool_call>'
    with pytest.raises(MalformedCall) as caught:
        read_call(find_call(call + call))
    assert caught.value.cause == "several_calls"


def test_a_code_block_that_is_no_json_is_not_taken_for_a_call() -> None:
    text = '```python\nprint({})\n```\n{"name": "submit", "arguments": {}}'
    assert read_call(find_call(text)).name == "submit"


def test_malformed_calls_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(MalformedCall("broken_json", "no")))
    assert (error.cause, error.message) == ("broken_json", "no")


def test_schemas_are_those_of_the_named_tools() -> None:
    schemas = json.loads(schemas_json(("edit_file", "nothing")))
    assert [schema["function"]["name"] for schema in schemas] == ["edit_file"]
    assert schemas[0]["function"]["parameters"]["required"] == ["path", "old", "new"]


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (b"\x1b[1;31mred\x1b[0m\n", "red\n"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b" 10%\r 50%\r100%\ndone\r\n", "100%\ndone\n"),
        (b"half\r\n\rwhole\r", "half\nwhole"),
        (b"a\xffb\x00c\x07\td", "a\N{REPLACEMENT CHARACTER}bc\td"),
        ("zażółć 日本 🙂".encode(), "zażółć 日本 🙂"),
        (b"\x1b[", ""),
    ],
)
def test_output_is_what_a_terminal_would_show(data: bytes, seen: str) -> None:
    assert clean_output(data) == seen


@given(st.binary())
@settings(deadline=None)
def test_cleaned_text_holds_no_control_characters_and_encodes(data: bytes) -> None:
    text = clean_output(data)
    text.encode()
    assert all(character >= " " or character in "\n\t" for character in text)
    clean_file(data).encode()


@given(st.text(), st.integers(0, 50))
@settings(deadline=None)
def test_clipping_keeps_both_ends_and_names_what_it_dropped(text: str, limit: int) -> None:
    text = whole_unicode(text)
    shown, dropped = clip(text, limit)
    if dropped == 0:
        assert shown == text
    else:
        head, tail = shown.split(f"\n[... {dropped} bytes dropped ...]\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len((head + tail).encode()) + dropped == len(text.encode())
        assert len((head + tail).encode()) <= limit


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("ls -l", "ls -l\n"),
        ("Here:\n```bash\nls\n```\nand\n```\nno\n```", "ls\n"),
        ("```python\ndef f():\n    return 1", "def f():\n    return 1\n"),
        ("````md\n```\ninner\n```\n````", "```\ninner\n```\n"),
        ("~~~\nx  \n~~~", "x  \n"),
        ("```\n```", ""),
        ("use `ls`", "use `ls`\n"),
    ],
)
def test_the_first_fenced_block_counts_or_the_whole_text(text: str, body: str) -> None:
    assert first_block(text) == body
