"""Padded rows of prompts and answers as a model reads them best: one row without pads, each prompt once.

TRL's trainers that generate pad prompts on the left and answers on the right, and repeat a prompt before each of its
answers. What comes of the answers' tokens is put back into that shape, (rows, tokens - 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from hftune.constants import IGNORE_INDEX
from hftune.models.attention.shared_prompts import SharedPrompts

Ids = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AnswerRows:
    """A batch for a transformer without a head, and where in it the tokens to score are.

    Args:
        inputs: What the transformer is called with.
        at: (tokens,) places in the flattened input whose states predict a token, row by row of the padded batch.
        ids: (tokens,) those tokens.
        mask: Bool (rows, tokens of a padded row - 1): where they belong.
        copies: Where each answer has a prompt of its own: how the row is without copies, which `at` counts in.
    """

    inputs: dict[str, Any]
    at: torch.Tensor
    ids: torch.Tensor
    mask: torch.Tensor
    copies: SharedPrompts | None = None

    def with_copies(self) -> AnswerRows:
        """A row that shares prompts with a prompt before each answer: for models that cannot share them."""
        shared: SharedPrompts = self.inputs["shared_prompts"]
        return replace(self, inputs=shared.copied(self.inputs), copies=shared)

    def pick(self, states: torch.Tensor) -> torch.Tensor:
        """Those of (batch, length, size) that predict a token: (tokens, size)."""
        if self.copies is not None:
            states = self.copies.without_copies(states)
        return states.reshape(-1, states.shape[-1]).index_select(0, self.at)

    def spread(self, column: torch.Tensor) -> torch.Tensor:
        """(tokens,) as (rows, tokens of a padded row - 1), 0 where there is nothing to score.

        Connected to the model even where no token is scored, so that every process has a gradient.
        """
        return column.new_zeros(self.mask.shape).masked_scatter(self.mask, column)


def padded_rows(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> AnswerRows:
    """The batch as it is: (rows, tokens) each; labels are -100 where nothing is scored."""
    mask = labels[:, 1:] != IGNORE_INDEX
    # The state before a label predicts it; the last one of a row predicts none.
    at = torch.nn.functional.pad(mask, (0, 1)).flatten().nonzero().squeeze(1)
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
    return AnswerRows(inputs, at, labels[:, 1:][mask], mask)


def shared_rows(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> AnswerRows:
    """One row: a prompt, its answers, the next prompt, ...; as it is where no prompt stands before an answer.

    Each token of an answer has a label. Rows of the batch without one are left out: nothing is scored there.
    """
    padded = padded_rows(input_ids, attention_mask, labels)
    rows = _rows(input_ids, attention_mask, padded.mask)
    if not all(prompt for prompt, _ in rows.values()):
        return padded
    groups: dict[Ids, list[tuple[int, Ids]]] = {}
    for number, (prompt, answer) in rows.items():
        groups.setdefault(prompt, []).append((number, answer))
    texts: list[Ids] = []
    positions: list[range] = []
    places: dict[int, list[int]] = {}
    end = 0
    for prompt, answers in groups.items():
        texts.append(prompt)
        positions.append(range(len(prompt)))
        # The prompt's last token predicts the first token of each of its answers.
        end += len(prompt)
        last = end - 1
        for number, answer in answers:
            places[number] = [last, *range(end, end + len(answer) - 1)]
            texts.append(answer)
            positions.append(range(len(prompt), len(prompt) + len(answer)))
            end += len(answer)
    lengths = tuple(tuple(len(answer) for _, answer in answers) for answers in groups.values())
    shared = SharedPrompts(tuple(map(len, groups)), lengths)
    at = [place for number in rows for place in places[number]][: len(padded.ids)]
    device = input_ids.device
    return AnswerRows(
        _inputs(texts, positions, shared, device), torch.tensor(at, dtype=torch.long, device=device), padded.ids,
        padded.mask,
    )  # fmt: skip


def _rows(input_ids: torch.Tensor, real: torch.Tensor, scored: torch.Tensor) -> dict[int, tuple[Ids, Ids]]:
    """Prompt and answer of each row that has an answer, by its number; of the first row where none has."""
    found: dict[int, tuple[Ids, Ids]] = {}
    # One copy to the host for all rows: a row is laid out in plain numbers.
    for number, (ids, seen, labelled) in enumerate(
        zip(input_ids.tolist(), real.tolist(), scored.tolist(), strict=True)
    ):
        start = labelled.index(True) + 1 if any(labelled) else len(ids)
        prompt = tuple(token for token, here in zip(ids[:start], seen, strict=False) if here)
        answer = tuple(token for token, here in zip(ids[start:], seen[start:], strict=True) if here)
        if answer:
            found[number] = prompt, answer
    # A process without an answer takes part all the same: what reduces its gradients is a collective.
    first = input_ids[0].tolist()
    return found or {0: (tuple(first[:1]), tuple(first[-1:]))}


def _inputs(texts: list[Ids], positions: list[range], shared: SharedPrompts, device: torch.device) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "input_ids": torch.tensor([list(chain.from_iterable(texts))], device=device),
        "position_ids": torch.tensor([list(chain.from_iterable(positions))], device=device),
        "shared_prompts": shared,
        # With a cache, transformers does not look for documents in a row.
        "use_cache": False,
    }
    for side in ("q", "k"):
        inputs |= {f"cu_seq_lens_{side}": shared.borders(shared.runs, device), f"max_length_{side}": max(shared.runs)}
    return inputs
