"""Pairs from every format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hftune.data.compared_answers import to_preference
from tests.unit.data.helpers import assistant, row, user
from tests.unit.data.records.values import HG, SYSTEM, UA, C, Q, R

PAIRS: list[tuple[dict[str, Any], list[dict[str, Any]], float | None]] = [
    ({"conversations": HG[:1], "chosen": "C", "rejected": "R"}, Q, None),
    ({"conversations": HG[:1], "system": "S", "chosen": "C", "rejected": "R"}, [SYSTEM, *Q], None),
    ({"conversations": HG[:1], "chosen": {"from": "gpt", "value": "C"}, "rejected": {"from": "gpt", "value": "R"}},
     Q, None),
    ({"conversations": HG[:1], "chosen": C[0], "rejected": R[0]}, Q, None),
    ({"messages": Q, "chosen": C, "rejected": R}, Q, None),
    ({"question": "Q", "response_chosen": "C", "response_rejected": "R"}, Q, None),
    ({"system": "S", "history": [["H", "A"]], "question": "Q", "response_chosen": "C", "response_rejected": "R"},
     [SYSTEM, user("H"), assistant("A"), *Q], None),
    ({"system": "", "history": None, "question": "Q", "response_chosen": "C", "response_rejected": "R"}, Q, None),
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "margin": 2}, Q, 2.0),
    ({"prompt": Q, "chosen": C, "rejected": R, "score_chosen": 4.5, "score_rejected": 2}, Q, 2.5),
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "score_chosen": 4.5}, Q, None),
    ({"instruction": "Q", "input": "I", "chosen": "C", "rejected": "R"}, [user("Q\nI")], None),
    ({"chosen": [*Q, *C], "rejected": [*Q, *R]}, Q, None),
    ({"prompt": "Q", "chosen": [*Q, *C], "rejected": [*Q, *R]}, Q, None),
    ({"prompt": "Q", "chosen": [SYSTEM, *Q, *C], "rejected": [SYSTEM, *Q, *R]}, [SYSTEM, *Q], None),
    # UltraFeedback as published, and with several turns.
    ({"prompt": "Q", "prompt_id": "1", "chosen": [*Q, *C], "rejected": [*Q, *R], "messages": [*Q, *C],
      "score_chosen": 8.5, "score_rejected": 7.0}, Q, 1.5),
    ({"prompt": "Q", "chosen": [user("H"), assistant("A"), *Q, *C], "rejected": [user("H"), assistant("A"), *Q, *R],
      "messages": [user("H"), assistant("A"), *Q, *C]}, [user("H"), assistant("A"), *Q], None),
    ({"chosen": [*Q, *C], "rejected": [*Q, *R], "conversations": [*Q, *C]}, Q, None),
    # Strings of numbers, as CSV has them.
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "margin": "2"}, Q, 2.0),
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "chosen_score": 3, "rejected_score": 1}, Q, 2.0),
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "chosen_rating": 3, "rejected_rating": 1}, Q, 2.0),
    # TRL's implicit prompt as JSON in a cell, and Anthropic's dialogues.
    ({"chosen": json.dumps([*Q, *C]), "rejected": json.dumps([*Q, *R])}, Q, None),
    ({"chosen": "\n\nHuman: Q\n\nAssistant: C", "rejected": "\n\nHuman: Q\n\nAssistant: R"}, Q, None),
    # ms-swift: all behind the last question is replaced.
    ({"messages": [*Q, *C], "rejected_response": "R"}, Q, None),
    ({"messages": [SYSTEM, *UA, user("S"), *C], "rejected_response": R}, [SYSTEM, *UA, user("S")], None),
    ({"messages": [*Q, *C], "rejected_messages": [*Q, *R]}, Q, None),
    ({"query": "Q", "response": "C", "rejected_response": "R", "system": "S"}, [SYSTEM, *Q], None),
    # LLaMA-Factory's newest format and its first.
    ({"chosen_messages": [*Q, {**C[0], "loss_weight": 1}], "rejected_messages": [*Q, R[0]]}, Q, None),
    ({"instruction": "Q", "input": "I", "output": ["C", "R"]}, [user("Q\nI")], None),
    # ERNIEKit: the higher number is better; numbers other than 0 and 1 are scores.
    ({"src": ["Q", "R"], "tgt": ["A"], "response": [["C"], ["R"]], "sort": [1, 0]}, [*UA, user("R")], None),
    ({"src": ["Q"], "tgt": [], "response": ["R", "C"], "sort": [1.5, 4]}, Q, 2.5),
    ({"src": ["Q"], "response": [["C"], ["R"]], "sort": [2, 1], "system": "S"}, [SYSTEM, *Q], 1.0),
    # Parquet gives every record all columns.
    ({"prompt": "Q", "chosen": "C", "rejected": "R", "conversations": None, "rejected_response": None}, Q, None),
    ({"chosen": [*Q, assistant("same"), user("more"), *C], "rejected": [*Q, assistant("same"), user("more"), *R]},
     [*Q, assistant("same"), user("more")], None),
]  # fmt: skip


@pytest.mark.parametrize(("value", "prompt", "margin"), PAIRS)
def test_preference(value: dict[str, Any], prompt: list[dict[str, Any]], margin: float | None) -> None:
    preference = to_preference(row(**value))
    assert preference.prompt == prompt
    assert (preference.chosen, preference.rejected, preference.margin) == (C, R, margin)
