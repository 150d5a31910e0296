"""Functions that a record offers, and calls of them, as fields and in the text of turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hftune.data.records import to_conversation
from hftune.data.tool_calls import parse_calls, thoughts_and_call, with_calls
from tests.unit.data.helpers import HG, TOOL, assistant, row, user


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([TOOL], [{"type": "function", "function": TOOL}]),
        ('[{"name": "f"}]', [{"type": "function", "function": {"name": "f"}}]),
        ([{"type": "function", "function": TOOL}], [{"type": "function", "function": TOOL}]),
        ("", None),
        ("[]", None),
        ([], None),
        (None, None),
        # Anthropic's, MCP's, OpenAI's Responses', and parameters as text.
        ([{"name": "f", "description": "d", "input_schema": {}}], [{"type": "function", "function": TOOL}]),
        ([{"name": "f", "description": "d", "inputSchema": {}}], [{"type": "function", "function": TOOL}]),
        ([{"type": "function", **TOOL}], [{"type": "function", "function": TOOL}]),
        ([{**TOOL, "parameters": "{}"}], [{"type": "function", "function": TOOL}]),
    ],
)
def test_tools(tools: Any, expected: Any) -> None:
    assert to_conversation(row(conversations=HG, tools=tools)).tools == expected


CALLED = {"type": "function", "function": {"name": "get", "arguments": {"x": 1}}}


@pytest.mark.parametrize(
    ("value", "calls"),
    [
        ('{"name": "get", "arguments": {"x": 1}}', [CALLED]),
        ([{"function": {"name": "get", "arguments": '{"x": 1}'}}], [CALLED]),
        ({"name": "get", "parameters": {"x": 1}}, [CALLED]),
        ({"name": "get", "input": {"x": 1}}, [CALLED]),
        (['{"name": "get", "arguments": {"x": 1}}'], [CALLED]),
        ({"id": "7", "name": "get", "arguments": {"x": 1}}, [{**CALLED, "id": "7"}]),
        ({"name": "get", "arguments": ""}, [{"type": "function", "function": {"name": "get", "arguments": {}}}]),
    ],
)
def test_calls(value: Any, calls: list[dict[str, Any]]) -> None:
    assert parse_calls(value, "turn") == calls


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "get", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
JSON = '{"name": "get", "arguments": {"city": "Rome", "days": 2}}'
GET: dict[str, Any] = {"name": "get", "arguments": {"city": "Rome", "days": 2}}
NOW: dict[str, Any] = {"name": "now", "arguments": {}}


def functions(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls", [])]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>\n{JSON}\n</tool_call>", "", [GET]),
        (f"I look.\n<tool_call>{JSON}</tool_call>\n<tool_call>\n{JSON}\n</tool_call>\n", "I look.", [GET, GET]),
        ('<tool_call>{"name": "get", "arguments": "{\\"city\\": \\"Rome\\", \\"days\\": 2}"}</tool_call>', "", [GET]),
        (f"<think>a <tool_call>{JSON}</tool_call>?</think>\n\n<tool_call>{JSON}</tool_call>",
         f"<think>a <tool_call>{JSON}</tool_call>?</think>", [GET]),
        ('Thought: so.\nAction: get\nAction Input: {"city": "Rome", "days": 2}\n', "Thought: so.", [GET]),
        ('Action: now\nAction Input: {}\nAction: get\nAction Input: {"city": "Rome", "days": 2}', "", [NOW, GET]),
    ],
)  # fmt: skip
def test_calls_in_texts(text: str, content: str, calls: list[dict[str, Any]]) -> None:
    asked, made = with_calls([user("Q"), assistant(text, weight=0.5)], TOOLS)
    assert (asked, made["content"], made["weight"]) == (user("Q"), content, 0.5)
    assert functions(made) == calls


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{JSON}</tool_call> is what I say",
        f"<tool_call>{JSON}</tool_call> and <tool_call>{JSON}</tool_call>",
        f"<tool_call>{JSON}",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        f'<tool_call>{JSON}</tool_call><tool_call>{{"name": "other"}}</tool_call>',
        "<tool_call>{broken}</tool_call>",
        '<tool_call>{"name": "get", "arguments": [1]}</tool_call>',
        "<tool_call><function=get>\n<parameter=city>\nRome\n</parameter>\n</function></tool_call>",
        f"[TOOL_CALLS] [{JSON}]",
        'Action: get\nAction Input: {"city": "Rome"}\nObservation: 20\nFinal Answer: 20',
        "Action: get\nAction Input: Rome",
        'an Action: get\nAction Input: {"city": "Rome"}',
    ],
)
def test_what_is_not_read_whole_stays_text(text: str) -> None:
    said = [user("Q"), assistant(text), user("<tool_response>\n20\n</tool_response>")]
    assert with_calls(said, TOOLS) == said


@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_nothing_is_a_call(tools: Any) -> None:
    said = [user("Q"), assistant(f"<tool_call>{JSON}</tool_call>")]
    assert with_calls(said, tools) == said


@pytest.mark.parametrize("role", ["user", "tool"])
def test_results_in_texts(role: str) -> None:
    text = "<tool_response>\n20\n</tool_response>\n<tool_response>\n\n21</tool_response>"
    call = assistant(f"<tool_call>{JSON}</tool_call>")
    *_, first, second = with_calls([user("Q"), call, {"role": role, "content": text}], TOOLS)
    assert [first, second] == [{"role": "tool", "content": "20"}, {"role": "tool", "content": "\n21"}]
    # Nothing was called, and more is said than results.
    for said in (
        [call, assistant("A"), {"role": role, "content": text}],
        [call, {"role": role, "content": f"{text} and?"}],
    ):
        assert with_calls(said, TOOLS)[-1] == said[-1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (JSON, ("", JSON)),
        (f"<think>\nso\n</think>\n\n{JSON}", ("<think>\nso\n</think>", JSON)),
        (f"<think>so</think><tool_call>{JSON}</tool_call>", ("<think>so</think>", [JSON])),
        (f"I look. <tool_call>{JSON}</tool_call>", ("I look.", [JSON])),
        ({"name": "get"}, ("", {"name": "get"})),
    ],
)
def test_thoughts_before_a_call_that_is_a_turn(text: Any, found: Any) -> None:
    assert thoughts_and_call(text) == found


def seconds(text: str, results: str) -> float:
    """Processor time that a record takes, the best of five."""
    times = []
    for _ in range(5):
        begin = time.process_time()
        with_calls([user("Q"), assistant(text), user(results)], TOOLS)
        thoughts_and_call(text)
        times.append(time.process_time() - begin)
    return min(times)


@pytest.mark.parametrize(
    "text",
    [
        lambda n: "<tool_call>" * n,
        lambda n: f"<tool_call>{JSON}</tool_call>" * (n // 16) + "x",
        lambda n: "Action: get\nAction Input:" + " " * 6 * n + "x",
        lambda n: "Action: " + "\nAction: " * n,
        lambda n: "<think>" * n + "</think>" * 5,
    ],
)  # fmt: skip
def test_records_made_to_be_slow_are_not(text: Callable[[int], str]) -> None:
    """Sixteen times the text takes sixteen times as long where work is linear, and 256 times where it is quadratic."""
    small, large = (seconds(text(n), "<tool_response>" * n) for n in (1500, 24_000))
    assert large < 64 * small
