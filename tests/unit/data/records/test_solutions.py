"""Answers in steps, from all the ways they are written."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.compared_answers import Solution, to_solutions
from hftune.errors import DataError
from tests.unit.data.helpers import row, user

STEPS = ["1 + 1 = 2", "2 + 1 = 4", "So 4."]


SHEPHERD = "Ann has 1. How many?  Step 1: 1 + 1 = 2 ки\nStep 2: 2 + 1 = 4 ки\nStep 3: So 4. ки"


def labels(value: dict[str, Any]) -> list[float | None]:
    (found,) = to_solutions(row(**value))
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
        ({"problem": "q", "steps": [{"text": text, "rating": r} for text, r in zip(STEPS, (1, -1, 0), strict=True)]},
         [1, 0, 1]),
        ({"problem": "q", "steps": STEPS}, [None, None, None]),
    ],
)  # fmt: skip
def test_formats(value: dict[str, Any], expected: list[float | None]) -> None:
    assert labels(value) == expected


def test_math_shepherd() -> None:
    value = {"input": SHEPHERD, "label": SHEPHERD.replace("ки", "+", 1).replace("ки", "-"), "task": "GSM8K"}
    (found,) = to_solutions(row(**value))
    assert found.prompt == [user("Ann has 1. How many?")]
    assert found.steps == ["Step 1: 1 + 1 = 2", "Step 2: 2 + 1 = 4", "Step 3: So 4."]
    assert found.labels == [1.0, 0.0, 0.0]
    with pytest.raises(DataError, match=r"in the place of each ки"):
        to_solutions(row(input=SHEPHERD, label=SHEPHERD))


def test_prm800k_has_a_solution_for_each_wrong_turning() -> None:
    def step(*texts: tuple[str, int | None], chosen: int | None, human: str | None = None) -> dict[str, Any]:
        written = [{"text": text, "rating": rating, "flagged": None} for text, rating in texts]
        fixed = None if human is None else {"text": human, "rating": None}
        return {"completions": written, "chosen_completion": chosen, "human_completion": fixed}

    steps = [
        step(("a", 1), ("b", -1), chosen=0),
        step(("c", 0), chosen=None, human="d"),
        step(("e", -1), chosen=None),
    ]
    found = to_solutions(row(question={"problem": "q"}, label={"steps": steps, "finish_reason": "found_error"}))
    assert [(one.steps, one.labels) for one in found] == [
        (["b"], [0]),
        (["a", "c"], [1, 1]),  # neutral counts as right
        (["a", "d", "e"], [1, 1, 0]),
    ]
    steps[2] = {"completions": None, "chosen_completion": None, "human_completion": None}  # nobody went on
    found = to_solutions(row(question={"problem": "q"}, label={"steps": steps}))
    assert [one.steps for one in found] == [["b"], ["a", "c"], ["a", "d"]]
    assert all(isinstance(one, Solution) and one.origin == "data.jsonl:1" for one in found)


@pytest.mark.parametrize(
    "value, words",
    [
        ({"prompt": "q", "completions": STEPS, "labels": [True]}, "must be a list of 3"),
        ({"prompt": "q", "completions": STEPS, "labels": [True, 2, False]}, "found 2"),
        ({"prompt": "q", "completions": ["a", " "], "labels": [True, True]}, "step 2 is no text"),
        ({"prompt": "q", "completions": [], "labels": []}, "no steps"),
        ({"problem": "q", "steps": STEPS, "label": 3}, "found 3 of 3"),
        ({"problem": "q", "steps": [{"text": "a", "rating": 2}]}, "a rating is"),
        ({"completions": STEPS, "labels": [1, 1, 1]}, "no answer in steps"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "no answer in steps"),
    ],
)
def test_errors_name_the_record(value: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        to_solutions(row(7, **value))
    assert caught.value.place == "data.jsonl:7"
