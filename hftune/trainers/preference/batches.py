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

from itertools import accumulate, chain
from typing import Any

import torch

from hftune.constants import FILLER
from hftune.models.attention.shared_prompts import flat_row, shared_row

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
        batch, places = shared_row(prompts, answers) if self.shared else self._apart(prompts, answers)
        # All first answers, then all second ones: halves of every tensor are chosen and rejected.
        at, ids = (list(chain.from_iterable(zip(*each, strict=True))) for each in (places, answers))
        batch["answer_at"] = torch.tensor([*chain.from_iterable(at)])
        batch["answer_ids"] = torch.tensor([*chain.from_iterable(ids)])
        batch["answer_lengths"] = torch.tensor([*map(len, ids)])
        batch["paired"] = len(answers[0]) == 2
        # A plain number: as a tensor, slicing by it would wait for the device.
        batch["chosen_total"] = sum(len(those[0]) for those in answers)
        tokens = [sum(len(prompt) + len(ids) for ids in those) for prompt, those in zip(prompts, answers, strict=True)]
        batch["num_tokens"] = torch.tensor(tokens)
        return batch

    def _apart(self, prompts: list[Ids], answers: list[list[Ids]]) -> tuple[dict[str, Any], list[list[Ids]]]:
        """Each answer behind a copy of its prompt: all first answers, then all second ones. As `shared_row`."""
        numbers = range(len(answers[0]))
        rows = [(prompt, those[number]) for number in numbers for prompt, those in zip(prompts, answers, strict=True)]
        lengths = [len(prompt) + len(ids) for prompt, ids in rows]
        width = -(-max(lengths) // self.multiple) * self.multiple
        starts = [0, *accumulate(lengths)] if self.flat else [row * width for row in range(len(rows) + 1)]
        firsts = [start + len(prompt) - 1 for start, (prompt, _) in zip(starts, rows, strict=False)]
        places = [[*range(first, first + len(ids))] for first, (_, ids) in zip(firsts, rows, strict=True)]
        texts = [[*prompt, *ids] for prompt, ids in rows]
        batch = (
            flat_row(texts, [range(length) for length in lengths], lengths) if self.flat else self._padded(texts, width)
        )
        return batch, [places[number :: len(prompts)] for number in range(len(prompts))]

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


def _answers(example: dict[str, Any]) -> list[Ids]:
    if "completion_ids" in example:
        return [list(example["completion_ids"])]
    return [list(example["chosen_ids"]), list(example["rejected_ids"])]
