"""Turns in the one canonical form: roles, calls, weights, and what is broken."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.records.conversations import to_conversation
from hftune.data.records.messages import parse_messages
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, row, user

W = "weight"


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        ({"weight": 0.5}, 0.5),
        ({"weight": 0}, 0.0),
        ({"weight": 3}, 3.0),
        ({"loss_scale": 2.0}, 2.0),
        ({"train": False}, 0.0),
        ({"train": True}, 1.0),
        ({"loss": False}, 0.0),
        ({"loss": False, "weight": 0}, 0.0),
        ({"loss": None, "weight": None}, None),
    ],
)
def test_weights_of_turns(given: dict[str, Any], weight: float | None) -> None:
    value = [user("Q"), assistant("A", **given), user("R"), {**assistant("B"), "loss": True}]
    found = to_conversation(row(messages=value)).messages[1]
    assert found == (assistant("A") if weight is None else assistant("A", weight=weight))
    assert not isinstance(found.get(W), bool)


@pytest.mark.parametrize("spoken", ["human", "HUMAN", "prompter"])
def test_roles_have_many_names(spoken: str) -> None:
    assert parse_messages([{"from": spoken, "value": "Q"}], "f:1", "messages") == [user("Q")]


def test_a_call_joins_the_turn_before_it_and_a_result_needs_one() -> None:
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}
    made, result = parse_messages(
        [{"from": "gpt", "value": "wait"}, call, {"from": "observation", "value": "7"}], "f", "m"
    )
    assert made["content"] == "wait" and made["tool_calls"][0]["function"]["name"] == "f"
    assert result == {"role": "tool", "content": "7"}
    with pytest.raises(DataError, match="follows no assistant turn"):
        parse_messages([{"from": "observation", "value": "7"}], "f", "m")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", "must be a list of turns, found str"),
        ([], "an empty list"),
        ([{"from": "alien", "value": "x"}], "unknown role 'alien'"),
        ([{"text": "x"}], r"m\[0\] must have from/value"),
        ([{"role": "assistant", "content": " "}], "empty assistant turn"),
        ([{"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}], "turn of user with function calls"),
    ],
)
def test_broken_turns(value: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        parse_messages(value, "f:1", "m")
