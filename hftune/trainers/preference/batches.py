"""Prompts with one or two answers each to a batch: padded, side by side in a row, or with each prompt once.

However a batch is laid out, it says in the same words where its answers are, so that one loss serves all layouts:

    answer_at       (tokens,) places in the flattened input whose hidden state predicts an answer's token
    answer_ids      (tokens,) those tokens: all first answers (chosen) of the batch, then all second ones (rejected)
    answer_lengths  (answers,) tokens of each answer, in that order
    paired          whether each prompt has two answers
    chosen_total    tokens of all first answers
    num_tokens      of each record, tokens of prompt and answers, the prompt counted once an answer, without padding
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch

from hftune.constants import FILLER
from hftune.models.attention.shared_prompts import SharedPrompts

NUMBERS = {
    "margin": "differences",
    "ref_chosen_logps": "ref_chosen_logps",
    "ref_rejected_logps": "ref_rejected_logps",
    "ref_logps": "ref_logps",
    "ref_kl_logps": "ref_kl_logps",
}
"""Columns of records that go along as float32 (batch,), and their names in a batch."""

COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids", "completion_ids", "kl_ids", "label", *NUMBERS)
"""All columns of records that a batch is made from."""

Ids = list[int]


@dataclass(frozen=True)
class _Placed:
    """An answer in a row: where its prompt's last token is, and where it begins itself."""

    before: int
    start: int
    ids: Ids

    def predictors(self) -> list[int]:
        """Places whose hidden states predict its tokens."""
        return [self.before, *range(self.start, self.start + len(self.ids) - 1)]


class PairCollator:
    """Batches of one layout.

    Args:
        pad_token_id: Fills padded rows.
        flat: One row without padding; else a row an answer, padded on the right.
        shared: In a flat row, each prompt once, with its answers behind it.
        pad_to_multiple_of: Round padded lengths up.
    """

    loss_knows_fillers = True

    def __init__(
        self, pad_token_id: int, *, flat: bool, shared: bool = False, pad_to_multiple_of: int | None = None
    ) -> None:
        self.pad_token_id, self.flat, self.shared = pad_token_id, flat, shared
        self.multiple = pad_to_multiple_of or 1

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Records with prompt_ids and chosen_ids, rejected_ids; or prompt_ids, completion_ids and label.

        Returns:
            What the module's description names; input_ids and, in a flat row (1, tokens), position_ids, cu_seq_lens
            and `shared_prompts`, or, padded (answers, length), attention_mask; `label` (batch,) bool; and the columns
            of `NUMBERS` that records have.
        """
        batch = self.lay_out([list(each["prompt_ids"]) for each in features], [_answers(each) for each in features])
        for column in ("label", FILLER):
            if column in features[0]:
                batch[column] = torch.tensor([bool(each[column]) for each in features])
        for column, name in NUMBERS.items():
            if column in features[0]:
                batch[name] = torch.tensor([float(each[column]) for each in features])
        if "kl_ids" in features[0]:
            other = self.lay_out(
                [list(each["prompt_ids"]) for each in features], [[list(each["kl_ids"])] for each in features]
            )
            batch["kl"] = other
        return batch

    def lay_out(self, prompts: list[Ids], answers: list[list[Ids]]) -> dict[str, Any]:
        """Prompts and, for each, its answers (as many for all) as inputs of the model and places of the answers."""
        if self.shared:
            batch, placed = _shared(prompts, answers)
        else:
            batch, placed = self._apart(prompts, answers)
        # All first answers, then all second ones: halves of every tensor are chosen and rejected.
        in_order = list(chain.from_iterable(zip(*placed, strict=True)))
        batch["answer_at"] = torch.tensor([place for answer in in_order for place in answer.predictors()])
        batch["answer_ids"] = torch.tensor([token for answer in in_order for token in answer.ids])
        batch["answer_lengths"] = torch.tensor([len(answer.ids) for answer in in_order])
        batch["paired"] = len(answers[0]) == 2
        # A plain number: as a tensor, slicing by it would wait for the device.
        batch["chosen_total"] = sum(len(those[0]) for those in answers)
        tokens = [sum(len(prompt) + len(ids) for ids in those) for prompt, those in zip(prompts, answers, strict=True)]
        batch["num_tokens"] = torch.tensor(tokens)
        return batch

    def _apart(self, prompts: list[Ids], answers: list[list[Ids]]) -> tuple[dict[str, Any], list[list[_Placed]]]:
        """Each answer behind a copy of its prompt: all first answers, then all second ones."""
        numbers = range(len(answers[0]))
        rows = [(prompt, those[number]) for number in numbers for prompt, those in zip(prompts, answers, strict=True)]
        lengths = [len(prompt) + len(ids) for prompt, ids in rows]
        width = -(-max(lengths) // self.multiple) * self.multiple
        starts = [0, *accumulate(lengths)] if self.flat else [row * width for row in range(len(rows) + 1)]
        placed = [
            _Placed(start + len(prompt) - 1, start + len(prompt), ids)
            for start, (prompt, ids) in zip(starts, rows, strict=False)
        ]
        texts = [[*prompt, *ids] for prompt, ids in rows]
        batch = (
            _flat(texts, [range(length) for length in lengths], lengths) if self.flat else self._padded(texts, width)
        )
        groups = [placed[number :: len(prompts)] for number in range(len(prompts))]
        return batch, groups

    def _padded(self, texts: list[Ids], width: int) -> dict[str, Any]:
        lengths = torch.tensor([[len(text)] for text in texts])
        return {
            "input_ids": torch.tensor([[*text, *[self.pad_token_id] * (width - len(text))] for text in texts]),
            # By length, not by comparing with the pad token: often that is EOS, which must be attended.
            "attention_mask": (torch.arange(width)[None, :] < lengths).long(),
            "use_cache": False,
        }


def counts_of(batch: dict[str, Any]) -> torch.Tensor:
    """Records of a batch and tokens of their first answers (chosen), without those that only fill up: (2,)."""
    lengths = batch["answer_lengths"].chunk(2)[0] if batch["paired"] else batch["answer_lengths"]
    kept = torch.ones_like(lengths) if FILLER not in batch else batch[FILLER].to(lengths.device).logical_not()
    return torch.stack([kept.sum(), (lengths * kept).sum()]).float()


def _shared(prompts: list[Ids], answers: list[list[Ids]]) -> tuple[dict[str, Any], list[list[_Placed]]]:
    """Prompt, first answer, second answer, next prompt, ..."""
    texts: list[Ids] = []
    positions: list[range] = []
    placed: list[list[_Placed]] = []
    end = 0
    for prompt, those in zip(prompts, answers, strict=True):
        # The prompt's last token predicts the first token of each of its answers.
        last = end + len(prompt) - 1
        end += len(prompt)
        texts.append(prompt)
        positions.append(range(len(prompt)))
        placed.append([])
        for ids in those:
            placed[-1].append(_Placed(last, end, ids))
            texts.append(ids)
            positions.append(range(len(prompt), len(prompt) + len(ids)))
            end += len(ids)
    # Plain numbers, not tensors: masks are built of them on the host, without waiting for the device.
    lengths = tuple(tuple(len(ids) for ids in those) for those in answers)
    shared = SharedPrompts(tuple(len(prompt) for prompt in prompts), lengths)
    return {**_flat(texts, positions, shared.runs), "shared_prompts": shared}, placed


def _flat(texts: list[Ids], positions: list[range], lengths: list[int]) -> dict[str, Any]:
    """One row; `lengths` are those of the runs that see only themselves (and their prompt)."""
    batch: dict[str, Any] = {
        "input_ids": torch.tensor([list(chain.from_iterable(texts))]),
        "position_ids": torch.tensor([list(chain.from_iterable(positions))]),
        # With a cache, transformers does not look for documents in a row.
        "use_cache": False,
    }
    borders = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    for side in ("q", "k"):
        batch[f"cu_seq_lens_{side}"] = borders
        batch[f"max_length_{side}"] = max(lengths)
    return batch


def _answers(example: dict[str, Any]) -> list[Ids]:
    if "completion_ids" in example:
        return [list(example["completion_ids"])]
    return [list(example["chosen_ids"]), list(example["rejected_ids"])]
