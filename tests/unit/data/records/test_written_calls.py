"""Calls and results in the text of turns: read whole, or left as the text that they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from hftune.data.tool_calls import thoughts_and_call, with_calls
from tests.unit.data.helpers import assistant, user

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "get", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
JSON = '{"name": "get", "arguments": {"city": "Rome", "days": 2}}'
GET: dict[str, Any] = {"name": "get", "arguments": {"city": "Rome", "days": 2}}
NOW: dict[str, Any] = {"name": "now", "arguments": {}}
QWEN = (
    "<tool_call>\n<function=get>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
GLM = (
    "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>"
)


def functions(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls", [])]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>\n{JSON}\n</tool_call>", "", [GET]),
        (f"I look.\n<tool_call>{JSON}</tool_call>\n<tool_call>\n{JSON}\n</tool_call>\n", "I look.", [GET, GET]),
        ('<tool_call>{"name": "get", "arguments": "{\\"city\\": \\"Rome\\", \\"days\\": 2}"}</tool_call>', "", [GET]),
        (QWEN, "", [GET]),
        ("<tool_call>\n<function=now>\n</function>\n</tool_call>", "", [NOW]),
        (GLM, "", [GET]),
        ("<tool_call>now</tool_call>", "", [NOW]),
        (f"<think>a <tool_call>{JSON}</tool_call>?</think>\n\n{GLM}",
         f"<think>a <tool_call>{JSON}</tool_call>?</think>", [GET]),
        (f"[TOOL_CALLS] [{JSON}]", "", [GET]),
        ('[TOOL_CALLS]get[ARGS]{"city": "Rome", "days": 2}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}', "", [GET, NOW]),
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
        QWEN.replace("</function>", "and so on</function>"),
        QWEN.replace("<parameter=city>", "so <parameter=city>"),
        GLM.replace("<arg_value>2", "<arg_valu>2"),
        GLM.replace("get\n", "get it\n"),
        "[TOOL_CALLS] and what they are",
        f"[TOOL_CALLS] [{JSON}] and so on",
        "[TOOL_CALLS]get{broken",
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


def test_arguments_are_of_the_types_that_the_function_has() -> None:
    properties = {"a": {"type": ["string", "null"]}, "b": {"type": "str"}, "c": {"type": "array"}, "d": "?"}
    tools = [{"type": "function", "function": {"name": "get", "parameters": {"properties": properties}}}]
    given = "".join(f"<parameter={name}>\n7\n</parameter>\n" for name in "abcde")
    (made,) = with_calls([assistant(f"<tool_call><function=get>\n{given}</function></tool_call>")], tools)
    assert functions(made)[0]["arguments"] == {"a": "7", "b": "7", "c": 7, "d": 7, "e": 7}


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
        lambda n: "<tool_call>get" + "<arg_key>" * n + "</tool_call>",
        lambda n: "<tool_call><function=get>" + "<parameter=a>" * n + "</function></tool_call>",
        lambda n: "Action: get\nAction Input:" + " " * 6 * n + "x",
        lambda n: "Action: " + "\nAction: " * n,
        lambda n: "[TOOL_CALLS]" * n,
        lambda n: "[TOOL_CALLS]" + "a" * 6 * n,
        lambda n: "<think>" * n + "</think>" * 5,
    ],
)  # fmt: skip
def test_records_made_to_be_slow_are_not(text: Callable[[int], str]) -> None:
    """Sixteen times the text takes sixteen times as long where work is linear, and 256 times where it is quadratic."""
    small, large = (seconds(text(n), "<tool_response>" * n) for n in (1500, 24_000))
    assert large < 64 * small
