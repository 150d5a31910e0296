"""Prompts, and what reward functions get."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.records import to_prompt
from tests.unit.data.helpers import assistant, row, user
from tests.unit.data.records.values import HG, SYSTEM, UA, Q


@pytest.mark.parametrize(
    ("value", "messages", "extra"),
    [
        ({"prompt": "Q", "answer": 4}, Q, {"answer": 4}),
        ({"prompt": [SYSTEM, *Q], "solution": "x"}, [SYSTEM, *Q], {"solution": "x"}),
        ({"question": "Q", "answer": "4", "level": 2}, Q, {"answer": "4", "level": 2}),
        ({"instruction": "Q", "input": "I", "output": "A"}, [user("Q\nI")], {"output": "A"}),
        ({"query": "Q", "response": "A"}, Q, {"response": "A"}),
        ({"conversations": HG, "id": 1}, Q, {"id": 1}),
        ({"problem": "Q", "solution": "x", "ground_truth": "4"}, Q, {"solution": "x", "ground_truth": "4"}),
        ({"prompt": Q, "reward_model": {"ground_truth": "4"}}, Q, {"reward_model": {"ground_truth": "4"}}),
        ({"src": ["Q"], "tgt": ["A"], "answer": 1}, Q, {"answer": 1}),
        ({"messages": [*UA, user("R"), assistant("B"), assistant("C")]}, [*UA, user("R")], {}),
        ({"conversations": HG[:1], "chosen": "C", "rejected": "R"}, Q, {"chosen": "C", "rejected": "R"}),
    ],
)
def test_prompt(value: dict[str, Any], messages: list[dict[str, Any]], extra: dict[str, Any]) -> None:
    prompt = to_prompt(row(**value))
    assert (prompt.messages, prompt.extra) == (messages, extra)


def test_prompts_do_not_share_messages_with_the_row() -> None:
    source = row(conversations=UA)
    to_prompt(source)
    assert source.value["conversations"] == UA
