"""The proof, before the first step, that answers behind one prompt are scored as if each stood alone."""

from __future__ import annotations

from typing import Any

import torch

from hftune.constants import IGNORE_INDEX
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.trainers.preference.isolation import TOLERANCE

Batch = dict[str, torch.Tensor]

LONG, SHORT = ((60, 40, 70), (50, 90, 30)), ((9, 5, 8), (7, 10, 4))
"""Prompt and two answers, twice: more than a block of any kernel; on a CPU no kernel works in blocks."""


@torch.no_grad()
def prove_shared_answers(model: Any, vocabulary: int, device: torch.device) -> None:
    """Score made-up answers in the layout of this run and one by one, and compare; every rank must take part.

    Args:
        model: As it is trained, an engine or a wrapper included, in evaluation mode; it has a scoring head.
        vocabulary: Token ids from 0 to below this are used.

    Raises:
        ArgumentError: They differ by more than rounding.
    """
    batch = {
        name: tensor.to(device) for name, tensor in made_up(vocabulary, SHORT if device.type == "cpu" else LONG).items()
    }
    here = _scored(model, batch)
    # A row of its own for each, which no other answer can reach.
    alone = [_scored(model, {name: tensor[row, None] for name, tensor in batch.items()}) for row in range(len(here))]
    # ZeRO-3 has noted in which order these passes used the modules; training would prefetch by it.
    zero.reset_fetch_order(model)
    off = (here - torch.cat(alone)).abs().max() / here.abs().max().clamp(min=1e-6)
    if float(off) > TOLERANCE:
        raise ArgumentError(
            "answers in a row are not scored as if they stood alone: this model or attention mixes them up",
            place="--shared_prompts / --attn_implementation",
            fix="add --shared_prompts False",
        )


def made_up(vocabulary: int, lengths: tuple[tuple[int, ...], ...]) -> Batch:
    """Prompts with two answers each, (answers, tokens), padded as TRL's are."""
    left, right = max(prompt for prompt, *_ in lengths), max(max(answers) for _, *answers in lengths)
    rows = []
    for number, (prompt, *answers) in enumerate(lengths):
        for place, answer in enumerate(answers):
            # From the middle of the vocabulary: its ends hold placeholders, for images and the like.
            said = [(vocabulary // 3 + (3 + 4 * number) * token) % vocabulary for token in range(prompt)]
            then = [(vocabulary // 3 + (5 + 4 * number + 2 * place) * token) % vocabulary for token in range(answer)]
            ids = [0] * (left - prompt) + said + then + [0] * (right - answer)
            seen = [0] * (left - prompt) + [1] * (prompt + answer) + [0] * (right - answer)
            rows.append((ids, seen))
    input_ids, mask = (torch.tensor(column) for column in zip(*rows, strict=True))
    labels = input_ids.masked_fill(mask == 0, IGNORE_INDEX)
    labels[:, :left] = IGNORE_INDEX
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


def _scored(model: Any, batch: Batch) -> torch.Tensor:
    log_probs: torch.Tensor = model(**batch, fused_lm_head=True).log_probs
    return log_probs.float()
