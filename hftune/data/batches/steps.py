"""Batches of answers in steps for a process reward model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hftune.data.batches.collators import CausalCollator, FlatCollator


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
        if "index" in examples[0]:
            batch["index"] = torch.tensor([each["index"] for each in examples])
        return batch
