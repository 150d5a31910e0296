"""Answers with a label."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.records import to_labelled
from tests.unit.data.helpers import row, user
from tests.unit.data.records.values import SYSTEM, TOOL, UA, C, Q


@pytest.mark.parametrize(
    ("value", "prompt", "label"),
    [
        ({"prompt": "Q", "completion": "C", "label": True}, Q, True),
        ({"prompt": Q, "completion": C, "label": False}, Q, False),
        ({"messages": [SYSTEM, *UA, *Q, *C], "label": 1}, [SYSTEM, *UA, *Q], True),
        ({"conversations": [*Q, *C], "kto_tag": False}, Q, False),
        ({"instruction": "Q", "input": "I", "output": "C", "kto_tag": "true"}, [user("Q\nI")], True),
        ({"prompt": "Q", "completion": "C", "label": 1.0}, Q, True),
        ({"query": "Q", "response": "C", "label": "0", "history": [["Q", "A"]]}, [*UA, *Q], False),
    ],
)
def test_labelled(value: dict[str, Any], prompt: list[dict[str, Any]], label: bool) -> None:
    labelled = to_labelled(row(**value, tools=[TOOL]))
    assert (labelled.prompt, labelled.completion, labelled.label) == (prompt, C, label)
    assert labelled.tools == [{"type": "function", "function": TOOL}]
