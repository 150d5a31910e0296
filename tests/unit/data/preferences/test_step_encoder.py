"""Answers in steps: the formats people have, where each step is scored, and batches."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.data.batches.steps import StepCollator
from hftune.data.preferences.step_encoder import StepEncoder
from hftune.data.records.solutions import Solution, to_solutions
from hftune.errors import DataError
from tests.unit.data.helpers import make_tokenizer, row, template, tokenise_rows, user

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
        mended = None if human is None else {"text": human, "rating": None}
        return {"completions": written, "chosen_completion": chosen, "human_completion": mended}

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


def encode(tokenizer: PreTrainedTokenizerFast, *values: dict[str, Any], **settings: Any) -> Any:
    rows = [row(number, **value) for number, value in enumerate(values, start=1)]
    return tokenise_rows(rows, StepEncoder(tokenizer, **{"max_length": 999, **settings}))


@pytest.mark.parametrize("separator", ["\n", "\n\n", " ", " ки\n"])
@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "gemma"])
def test_a_step_is_scored_at_its_last_character(name: str, separator: str) -> None:
    tokenizer = make_tokenizer(template(name))
    steps = ["天气 🙂", "b", "天气 🙂", "it is 4"]
    value = {"prompt": "q", "completions": steps, "labels": [True, False, True, None]}
    dataset, counts = encode(tokenizer, value, step_separator=separator)
    example = dataset[0]
    assert example["step_labels"] == [1.0, 0.0, 1.0] and counts.trained_tokens == 3
    for number, end in enumerate(example["ends"]):
        seen, before = (tokenizer.decode(example["input_ids"][:to]) for to in (end + 1, end))
        said = separator.join(steps[: number + 1])
        assert seen.rstrip().endswith(said.rstrip()) and not before.endswith(said)


def test_what_is_cut_takes_its_steps_along(chatml: PreTrainedTokenizerFast) -> None:
    value = {"prompt": "q", "completions": ["a", "b", "c"], "labels": [1, 0, 1]}
    whole, _ = encode(chatml, value)
    cut, counts = encode(chatml, value, max_length=whole[0]["ends"][1] + 1)
    assert cut[0]["ends"] == whole[0]["ends"][:2] and cut[0]["step_labels"] == [1.0, 0.0]
    assert (counts.used, counts.truncated) == (1, 1)
    with pytest.raises(DataError, match="no labelled step within --max_length"):
        encode(chatml, value, max_length=4)


def test_last_step_only(chatml: PreTrainedTokenizerFast) -> None:
    value = {"prompt": "q", "completions": ["a", "b", "c"], "labels": [1, 0, None]}
    whole, _ = encode(chatml, value)
    last, _ = encode(chatml, value, last_only=True)
    assert (last[0]["ends"], last[0]["step_labels"]) == (whole[0]["ends"][1:2], [0.0])


EXAMPLES = [
    {"input_ids": [1, 2, 3, 4], "ends": [1, 3], "step_labels": [1.0, 0.0], "index": 5},
    {"input_ids": [6, 7], "ends": [1], "step_labels": [0.5], "index": 6},
]


@pytest.mark.parametrize(
    "flat, ids, ends",
    [
        (True, [[1, 2, 3, 4, 6, 7]], [1, 3, 5]),
        (False, [[1, 2, 3, 4], [6, 7, 0, 0]], [1, 3, 5]),
    ],
)
def test_batches(flat: bool, ids: list[list[int]], ends: list[int]) -> None:
    batch = StepCollator(0, flat=flat)(EXAMPLES)
    assert batch["input_ids"].tolist() == ids and batch["ends"].tolist() == ends
    assert batch["labels"].tolist() == [1.0, 0.0, 0.5]
    assert batch["steps"].tolist() == [2, 1] and batch["index"].tolist() == [5, 6]
