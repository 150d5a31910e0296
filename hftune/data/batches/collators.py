"""Examples of different lengths to one batch: padded, or one after the other in a single row."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from hftune.constants import IGNORE_INDEX, TEACHER_ROWS


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
            LongTensors of shape (batch, length), length being that of the longest example, rounded up; and, where
            examples have them, loss_weights (batch, length), float32, 0 for padding, and teacher_rows, int64, -1 there.
        """
        single = all(len(feature.get("seq_lengths", ())) < 2 for feature in features)
        assert single, "rows of several documents go through FlatCollator"
        # The batch is as long as its own longest example, not as the data set's: padding is computed like any token.
        longest = max(len(feature["input_ids"]) for feature in features)
        length = -(-longest // self.multiple) * self.multiple
        lengths = torch.tensor([[len(feature["input_ids"])] for feature in features])
        weights = [feature["loss_weights"] for feature in features if "loss_weights" in feature]
        scale = {"loss_weights": _padded(weights, length, 0, torch.float32)} if weights else {}
        if TEACHER_ROWS in features[0]:
            scale[TEACHER_ROWS] = _padded([feature[TEACHER_ROWS] for feature in features], length, -1)
        return scale | {
            "input_ids": _padded([feature["input_ids"] for feature in features], length, self.pad_token_id),
            "labels": _padded([feature["labels"] for feature in features], length, IGNORE_INDEX),
            # By length, not by comparing with the pad token: often that is EOS, which must be attended.
            "attention_mask": (torch.arange(length)[None, :] < lengths).long(),
        }


class FlatCollator:
    """Puts examples one after the other into a single row, without a pad token: packed rows, or plain examples.

    There is no attention mask: one of ones would tell transformers that the row is a single document. Positions that
    start again at 0 tell where documents begin, and so do the lengths that FlashAttention takes.
    """

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor | int]:
        """Examples with input_ids and labels, and seq_lengths where an example holds several documents.

        Returns:
            input_ids, labels and position_ids: LongTensors of shape (1, tokens). The first label of each document is
            IGNORE_INDEX, since nothing before it could predict it.
            cu_seq_lens_q, cu_seq_lens_k: IntTensor of shape (documents + 1,), where each document begins, and the end.
            max_length_q, max_length_k: int, tokens of the longest document.
            use_cache: False. With a cache, transformers does not look for documents in a row.
        """
        lengths = torch.tensor([length for feature in features for length in _documents(feature)])
        boundaries = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        labels = _joined(features, "labels")
        # Again here, although packed rows have it already: examples that are joined only now have a trained first
        # token.
        labels[0, boundaries[:-1]] = IGNORE_INDEX
        starts = torch.repeat_interleave(boundaries[:-1], lengths)
        batch: dict[str, torch.Tensor | int] = {
            "input_ids": _joined(features, "input_ids"),
            "labels": labels,
            "position_ids": (torch.arange(len(starts)) - starts)[None],
            "use_cache": False,
        }
        if "loss_weights" in features[0]:
            batch["loss_weights"] = torch.tensor([[weight for each in features for weight in each["loss_weights"]]])
        if TEACHER_ROWS in features[0]:
            batch[TEACHER_ROWS] = _joined(features, TEACHER_ROWS)
        # transformers hands these four to FlashAttention's varlen kernels as they are; queries and keys are the same
        # row.
        for side in ("q", "k"):
            batch[f"cu_seq_lens_{side}"] = boundaries.int()
            batch[f"max_length_{side}"] = int(lengths.max())
        return batch


def _documents(feature: dict[str, Any]) -> list[int]:
    """Lengths of the documents in an example."""
    if "seq_lengths" not in feature:
        return [len(feature["input_ids"])]
    lengths = [int(length) for length in feature["seq_lengths"]]
    assert sum(lengths) == len(feature["input_ids"]), "seq_lengths cover the example"
    return lengths


def _joined(features: list[dict[str, Any]], name: str) -> torch.Tensor:
    """(1, tokens)"""
    values = [feature[name] for feature in features]
    # Blocks of pre-training come as tensors; a list of Python integers is made of records of `datasets`.
    if isinstance(values[0], torch.Tensor):
        return torch.cat(values).long()[None]
    return torch.tensor(list(chain.from_iterable(values)), dtype=torch.long)[None]


def _padded(values: list[Any], length: int, filler: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
    """(batch, length), each row filled up on the right."""
    batch = torch.full((len(values), length), filler, dtype=dtype)
    for row, value in zip(batch, values, strict=True):
        row[: len(value)] = torch.as_tensor(value, dtype=dtype)
    return batch


def causal_collator(pad_token_id: int, *, flat: bool) -> CausalCollator | FlatCollator:
    """The collator of PT and SFT: documents end to end in one row, or padded."""
    return FlatCollator() if flat else CausalCollator(pad_token_id)


def shifted(values: torch.Tensor, filler: float) -> torch.Tensor:
    """(batch, tokens): at each place what belongs to the token after it, and `filler` at the last."""
    return torch.nn.functional.pad(values[:, 1:], (0, 1), value=filler)
