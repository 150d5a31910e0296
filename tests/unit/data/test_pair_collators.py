"""Batches of pairs, padded and in one row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hftune.data.pair_collators import FlatPairCollator, PairCollator, StepCollator

PAIRS = [
    {"chosen_ids": [1, 2, 9], "rejected_ids": [3], "margin": 0.5, "index": 4},
    {"chosen_ids": [4, 9, 9], "rejected_ids": [5, 6], "margin": 1.0, "index": 7},
]


def test_padded() -> None:
    batch = PairCollator(0)(PAIRS)
    assert batch["input_ids"].tolist() == [[1, 2, 9], [4, 9, 9], [3, 0, 0], [5, 6, 0]]
    assert batch["index"].tolist() == [4, 7] and batch["margin"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize("collator", [PairCollator(0), FlatPairCollator(9)])
def test_margins_are_numbers_of_a_loss(collator: Any) -> None:
    assert collator([{**pair, "margin": 1} for pair in PAIRS])["margin"].dtype == torch.float32
    assert collator.loss_knows_fillers is True


def test_flat() -> None:
    batch = FlatPairCollator(9)(PAIRS)
    #                                       chosen            rejected
    assert batch["input_ids"].tolist() == [[1, 2, 9, 4, 9, 9, 3, 5, 6]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 0, 0, 1]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 6, 7, 9]
    # The last token that is not the pad token, which is the end of text here.
    assert batch["ends"].tolist() == [1, 3, 6, 8]
    assert batch["margin"].tolist() == [0.5, 1.0] and batch["index"].tolist() == [4, 7]
    assert "labels" not in batch and isinstance(batch["ends"], torch.Tensor)


EXAMPLES = [
    {"input_ids": [1, 2, 3, 4], "ends": [1, 3], "step_labels": [1.0, 0.0], "index": 5},
    {"input_ids": [6, 7], "ends": [1], "step_labels": [0.5], "index": 6},
]


@pytest.mark.parametrize(
    "flat, ids, ends", [(True, [[1, 2, 3, 4, 6, 7]], [1, 3, 5]), (False, [[1, 2, 3, 4], [6, 7, 0, 0]], [1, 3, 5])]
)
def test_batches(flat: bool, ids: list[list[int]], ends: list[int]) -> None:
    batch = StepCollator(0, flat=flat)(EXAMPLES)
    assert batch["input_ids"].tolist() == ids and batch["ends"].tolist() == ends
    assert batch["labels"].tolist() == [1.0, 0.0, 0.5]
    assert batch["steps"].tolist() == [2, 1] and batch["index"].tolist() == [5, 6]
