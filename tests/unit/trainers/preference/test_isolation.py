"""Answers that share a row must be scored as if each stood alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hftune.errors import ArgumentError
from hftune.trainers.preference.batches import PairCollator
from hftune.trainers.preference.isolation import TOLERANCE, prove_answer_isolation

COLLATORS = [PairCollator(0, flat=True), PairCollator(0, flat=True, shared=True)]


@pytest.mark.parametrize("collator", COLLATORS, ids=["flat", "shared"])
def test_alike_in_all_layouts(collator: PairCollator) -> None:
    """Numbers that depend on a token alone are the same however rows are laid out."""
    prove_answer_isolation(lambda batch: -batch["answer_ids"].float() - 1, collator, 300)


@pytest.mark.parametrize(("share", "refused"), [(TOLERANCE / 2, False), (TOLERANCE * 2, True)])
def test_what_moves_more_than_rounding_is_refused(share: float, refused: bool) -> None:
    def score(batch: dict[str, Any]) -> torch.Tensor:
        padded = "attention_mask" in batch
        return torch.full((len(batch["answer_ids"]),), -1.0 if padded else -1.0 - share)

    if not refused:
        prove_answer_isolation(score, COLLATORS[1], 300)
        return
    with pytest.raises(ArgumentError, match="as if they stood alone"):
        prove_answer_isolation(score, COLLATORS[1], 300)
