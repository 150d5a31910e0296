"""Batches of answers in steps, padded and in one row."""

from __future__ import annotations

import pytest

from hftune.data.batches.steps import StepCollator

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
