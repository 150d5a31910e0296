"""A record is explained by the columns that it was recognised by."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.tools.records.entry import describe_format
from tests.unit.data.helpers import HG, TOOL, C, Q


@pytest.mark.parametrize(
    ("value", "script", "line"),
    [
        ({"conversations": HG, "system": "S", "tools": [TOOL], "id": 1}, "run_sft.py",
         'ShareGPT, because it has "conversations", with system, tools; not used: id'),
        ({"instruction": "Q", "input": "I", "output": "A"}, "run_sft.py",
         'Alpaca, because it has "instruction" and "output", with input'),
        ({"conversations": HG[:1], "chosen": "C", "rejected": "R"}, "run_rm.py",
         'chosen and rejected after ShareGPT, because it has "conversations" and "chosen" and "rejected"'),
        ({"question": "Q", "answer": "A"}, "run_rl.py",
         'question, because it has "question"; for the reward functions: answer'),
        ({"question": "Q", "answer": "A"}, "run_sft.py",
         'question and answer, because it has "question" and "answer"'),
        ({"problem": "Q", "answer": "A"}, "run_sft.py",
         "no format that run_sft.py reads; it looks like data for run_rl.py (prompts without an answer to learn)"),
        ({"messages": [*Q, *C], "rejected_response": "R"}, "run_dpo.py",
         'messages and rejected_response, because it has "messages" and "rejected_response"'),
        ({"a": 1}, "run_pt.py", "no format that run_pt.py reads"),
    ],
)  # fmt: skip
def test_a_record_is_explained(value: dict[str, Any], script: str, line: str) -> None:
    assert describe_format(value, script) == line
