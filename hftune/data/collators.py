"""Examples of different lengths to one batch."""

from __future__ import annotations

from typing import Any

import torch

from hftune.constants import IGNORE_INDEX


class CausalCollator:
    """Pads examples on the right.

    Args:
        pad_token_id: Fills input_ids; the attention mask is 0 there, and labels are IGNORE_INDEX.
        pad_to_multiple_of: Round the length up to a multiple of this, for tensor cores.
    """

    def __init__(self, pad_token_id: int, pad_to_multiple_of: int | None = None) -> None:
        self.pad_token_id = pad_token_id
        self.multiple = pad_to_multiple_of or 1

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Examples with input_ids and labels of one length each to input_ids, labels and attention_mask.

        Returns:
            LongTensors of shape (batch, length), length being that of the longest example, rounded up.
        """
        longest = max(len(feature["input_ids"]) for feature in features)
        length = -(-longest // self.multiple) * self.multiple
        lengths = torch.tensor([[len(feature["input_ids"])] for feature in features])
        return {
            "input_ids": _padded([feature["input_ids"] for feature in features], length, self.pad_token_id),
            "labels": _padded([feature["labels"] for feature in features], length, IGNORE_INDEX),
            # By length, not by comparing with the pad token: often that is EOS, which must be attended.
            "attention_mask": (torch.arange(length)[None, :] < lengths).long(),
        }


def _padded(values: list[Any], length: int, filler: int) -> torch.Tensor:
    """(batch, length), each row filled up on the right."""
    batch = torch.full((len(values), length), filler, dtype=torch.long)
    for row, value in zip(batch, values, strict=True):
        row[: len(value)] = torch.as_tensor(value, dtype=torch.long)
    return batch
