"""The proof, before the first step, that answers in a row are scored as if each stood alone behind its prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hftune.errors import ArgumentError
from hftune.trainers.preference.batches import PairCollator

LENGTHS = ((60, 40, 70), (50, 90, 30))
"""Prompt and two answers of two pairs: more than a block of any kernel, with borders inside blocks."""

TOLERANCE = 0.05
"""Of the largest log-probability. A mask that leaks moves them by 0.2 and more; bf16 rounds to less than 0.01."""


@torch.no_grad()
def prove_answer_isolation(
    score: Callable[[dict[str, Any]], torch.Tensor], collator: PairCollator, vocabulary: int
) -> None:
    """Score two made-up pairs laid out as in training and padded, and compare.

    Every rank must take part. It costs two forward passes of about 500 tokens a run.

    Args:
        score: Log-probabilities of a batch's answer tokens, (tokens,).
        collator: That of the run.
        vocabulary: Token ids from 0 to below this are used.

    Raises:
        ArgumentError: They differ by more than rounding.
    """
    made = [_tokens(number, vocabulary) for number in range(len(LENGTHS))]
    # Rows of one answer each, which no other answer can reach.
    padded = PairCollator(collator.pad_token_id, flat=False)
    here, alone = (score(each(made)).float() for each in (collator, padded))
    off = (here - alone).abs().max() / alone.abs().max().clamp(min=1e-6)
    if float(off) > TOLERANCE:
        raise ArgumentError(
            "answers in a row are not scored as if they stood alone: this model or attention mixes them up",
            place="--shared_prompts / --padding_free / --attn_implementation",
            fix="add --shared_prompts False, or if that does not help --padding_free False",
        )


def _tokens(number: int, vocabulary: int) -> dict[str, list[int]]:
    # From the middle of the vocabulary: its ends hold placeholders, for images and the like.
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    return {
        name: [(vocabulary // 3 + (3 + 4 * number + 2 * place) * token) % vocabulary for token in range(length)]
        for place, (name, length) in enumerate(zip(names, LENGTHS[number], strict=True))
    }
