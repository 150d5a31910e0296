"""Batches for reward models, of pairs and of answers in steps: padded, or one after the other in a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from trl.trainer.reward_trainer import DataCollatorForPreference

from hftune.data.collators import CausalCollator, FlatCollator


class PairCollator(DataCollatorForPreference):
    """TRL's padded pairs, all chosen answers before all rejected ones, with the number of each pair."""

    loss_knows_fillers = True

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Pairs to input_ids and attention_mask, (2 * pairs, length), and margin and index, (pairs,), where known."""
        return super().torch_call(examples) | _numbers(examples)


class FlatPairCollator:
    """The conversations of several pairs one after the other in a single row, all chosen ones before the rejected.

    Args:
        pad_token_id: A conversation's score is read at its last token that is not this one, as transformers does.
    """

    loss_knows_fillers = True

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id
        self.flat = FlatCollator()

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor | int]:
        """Pairs to what `FlatCollator` gives but labels, and ends.

        Returns:
            ends: LongTensor (2 * pairs,), where in the row a conversation's score is read.
            margin, index: (pairs,), where known.
        """
        # All chosen ones first, as TRL's collator has them: the loss halves the scores in the middle.
        sides = [example[name] for name in ("chosen_ids", "rejected_ids") for example in examples]
        # Labels are asked for by the flat row alone; a reward model has none.
        batch = self.flat([{"input_ids": ids, "labels": ids} for ids in sides])
        del batch["labels"]
        boundaries = batch["cu_seq_lens_q"]
        assert isinstance(boundaries, torch.Tensor)
        ends = [start + self._last(ids) for start, ids in zip(boundaries.tolist(), sides, strict=False)]
        if "margin" in examples[0]:
            batch["margin"] = torch.tensor([example["margin"] for example in examples], dtype=torch.float32)
        return batch | {"ends": torch.tensor(ends)} | _numbers(examples)

    def _last(self, ids: list[int]) -> int:
        # Not simply the last token: EOS is often the pad token, and transformers reads the score before it.
        said = np.flatnonzero(np.asarray(ids) != self.pad_token_id)
        return int(said[-1]) if len(said) else 0


def _numbers(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    if "index" not in examples[0]:
        return {}
    return {"index": torch.tensor([example["index"] for example in examples])}


class StepCollator:
    """Batches of answers in steps, padded or one after the other in one row.

    Args:
        pad_token_id: For padding.
        flat: Whether there is none.
    """

    def __init__(self, pad_token_id: int, *, flat: bool) -> None:
        self.rows: Any = FlatCollator() if flat else CausalCollator(pad_token_id)

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Examples to what the model takes, and where steps end.

        Returns:
            input_ids and what tells documents or padding, as of `FlatCollator` or `CausalCollator`.
            ends: LongTensor (steps,), places in the rows laid out one after the other.
            labels: (steps,), float32; -1 without a label.
            steps: LongTensor (examples,), how many each has.
            index: (examples,), where known.
        """
        batch = self.rows([{"input_ids": each["input_ids"], "labels": each["input_ids"]} for each in examples])
        del batch["labels"]
        width = batch["input_ids"].shape[1]
        # Scores are picked from the logits laid out one row after the other, padding included; a single row has none.
        if len(batch["input_ids"]) > 1:
            starts = [number * width for number in range(len(examples))]
        else:
            starts = np.cumsum([0, *(len(each["input_ids"]) for each in examples)]).tolist()
        ends = [start + end for start, each in zip(starts, examples, strict=False) for end in each["ends"]]
        batch["ends"] = torch.tensor(ends)
        batch["labels"] = torch.tensor([label for each in examples for label in each["step_labels"]])
        batch["steps"] = torch.tensor([len(each["ends"]) for each in examples])
        return batch | _numbers(examples)
