"""Pairs and answers in steps from every format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hftune.data.compared_answers import to_preference, to_solution
from hftune.errors import DataError
from tests.unit.data.helpers import HG, SYSTEM, UA, C, Q, R, assistant, row, user

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
    # LLaMA-Factory's newest format.
    ({"chosen_messages": [*Q, {**C[0], "loss_weight": 1}], "rejected_messages": [*Q, R[0]]}, Q, None),
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


STEPS = ["1 + 1 = 2", "2 + 1 = 4", "So 4."]


def labels(value: dict[str, Any]) -> list[float | None]:
    found = to_solution(row(**value))
    assert found.steps == STEPS and found.prompt == [user("q")]
    return found.labels


@pytest.mark.parametrize(
    "value, expected",
    [
        ({"prompt": "q", "completions": STEPS, "labels": [True, False, None]}, [1, 0, None]),  # TRL
        ({"prompt": [user("q")], "steps": STEPS, "labels": ["+", "-", 0.25]}, [1, 0, 0.25]),
        ({"question": "q", "steps": STEPS, "labels": [1, 0, -100]}, [1, 0, None]),
        ({"problem": "q", "steps": STEPS, "label": 1}, [1, 0, None]),  # ProcessBench
        ({"problem": "q", "steps": STEPS, "label": -1}, [1, 1, 1]),
        ({"problem": "q", "steps": STEPS, "label": 0}, [0, None, None]),
        ({"problem": "q", "steps": STEPS}, [None, None, None]),
    ],
)  # fmt: skip
def test_formats(value: dict[str, Any], expected: list[float | None]) -> None:
    assert labels(value) == expected


@pytest.mark.parametrize(
    "value, words",
    [
        ({"prompt": "q", "completions": STEPS, "labels": [True]}, "must be a list of 3"),
        ({"prompt": "q", "completions": STEPS, "labels": [True, 2, False]}, "found 2"),
        ({"prompt": "q", "completions": ["a", " "], "labels": [True, True]}, "step 2 is no text"),
        ({"prompt": "q", "completions": [], "labels": []}, "no steps"),
        ({"problem": "q", "steps": STEPS, "label": 3}, "found 3 of 3"),
        ({"problem": "q", "steps": [{"text": "a", "rating": 2}]}, "step 1 is no text"),
        ({"completions": STEPS, "labels": [1, 1, 1]}, "no answer in steps"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "no answer in steps"),
    ],
)
def test_errors_name_the_record(value: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        to_solution(row(7, **value))
    assert caught.value.place == "data.jsonl:7"
