"""Functions that a record offers, and calls of them."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.records import to_conversation
from hftune.data.tool_calls import parse_calls
from hftune.errors import DataError
from tests.unit.data.helpers import row
from tests.unit.data.records.values import HG, TOOL


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


GET = {"type": "function", "function": {"name": "get", "arguments": {"x": 1}}}


@pytest.mark.parametrize(
    ("value", "calls"),
    [
        ('{"name": "get", "arguments": {"x": 1}}', [GET]),
        ([{"function": {"name": "get", "arguments": '{"x": 1}'}}], [GET]),
        ({"name": "get", "parameters": {"x": 1}}, [GET]),
        ({"name": "get", "input": {"x": 1}}, [GET]),
        (['{"name": "get", "arguments": {"x": 1}}'], [GET]),
        ({"id": "7", "name": "get", "arguments": {"x": 1}}, [{**GET, "id": "7"}]),
        ({"name": "get", "arguments": ""}, [{"type": "function", "function": {"name": "get", "arguments": {}}}]),
    ],
)
def test_calls(value: Any, calls: list[dict[str, Any]]) -> None:
    assert parse_calls(value, "f:1", "turn") == calls


@pytest.mark.parametrize(
    ("value", "words"),
    [([], "empty list"), ({"x": 1}, "without a name"), ("{", "not JSON"), ({"name": "f", "arguments": [1]}, "object")],
)
def test_broken_calls(value: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        parse_calls(value, "f:1", "turn")
    assert caught.value.place == "f:1"
