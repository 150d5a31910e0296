"""Examples of different lengths to one batch, padded or one after the other; and the slice of one process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from hftune.constants import FILLER, IGNORE_INDEX, LABEL_COUNT, TEACHER_ROWS


class CausalCollator:
    """Pads examples on the right.

    Args:
        pad_token_id: Fills input_ids; the attention mask is 0 there, and labels are IGNORE_INDEX.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Examples with input_ids and labels of one length each to input_ids, labels and attention_mask.

        Returns:
            LongTensors of shape (batch, length), length being that of the longest example; and, where
            examples have them, loss_weights (batch, length), float32, 0 for padding, and teacher_rows, int64, -1 there.
        """
        single = all(len(feature.get("seq_lengths", ())) < 2 for feature in features)
        assert single, "rows of several documents go through FlatCollator"
        # The batch is as long as its own longest example, not as the data set's: padding is computed like any token.
        length = max(len(feature["input_ids"]) for feature in features)
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


Batch = dict[str, Any]


def sliced(batch: Batch, slice_of: Callable[[int], slice], processes: int) -> Batch:
    """A batch of `FlatCollator` to that of one process.

    Args:
        batch: One row: input_ids, labels, position_ids, perhaps loss_weights and teacher_rows (1, tokens),
            cu_seq_lens_q and _k.
        slice_of: From the tokens of the row to the process's part.
        processes: A row with fewer tokens is filled up to one each.

    Returns:
        The same names. `labels`, as `shift_labels`, hold at each place the token after it: the last one of a slice is
        predicted from it, though it is the first of the next slice. So do `loss_weights` and `teacher_rows`. Borders of
        documents and all else stay those of the whole row.
    """
    assert batch["input_ids"].shape[0] == 1 and "cu_seq_lens_q" in batch, "a row from FlatCollator"
    batch = _filled({name: value for name, value in batch.items() if name != LABEL_COUNT}, processes)
    part = slice_of(batch["input_ids"].shape[1])
    # Shifted before slicing: a slice's last token predicts the first one of the next slice, which its process lacks.
    labels = shifted(batch["labels"], IGNORE_INDEX)[:, part].contiguous()
    own: Batch = {name: batch[name][:, part] for name in ("input_ids", "position_ids", FILLER) if name in batch}
    for name, filler in (("loss_weights", 0.0), (TEACHER_ROWS, -1)):
        if name in batch:
            own[name] = shifted(batch[name], filler)[:, part]
    return {**batch, **own, "labels": labels, "shift_labels": labels}


def _filled(batch: Batch, least: int) -> Batch:
    """With one more document of nothing to train, where the row is shorter than `least`."""
    # An empty slice would leave a process without a loss to reduce, while the others wait for it.
    missing = least - batch["input_ids"].shape[1]
    if missing <= 0:
        return batch
    batch = {FILLER: torch.zeros_like(batch["labels"], dtype=torch.bool), **batch}
    fillers = {"input_ids": 0, "labels": IGNORE_INDEX, "loss_weights": 0, TEACHER_ROWS: -1, FILLER: True}
    more = {
        name: torch.nn.functional.pad(batch[name], (0, missing), value=filler)
        for name, filler in fillers.items()
        if name in batch
    }
    places = torch.arange(missing, device=batch["position_ids"].device)[None]
    more["position_ids"] = torch.cat([batch["position_ids"], places], dim=1)
    for side in ("q", "k"):
        boundaries = batch[f"cu_seq_lens_{side}"]
        more[f"cu_seq_lens_{side}"] = torch.cat([boundaries, boundaries[-1:] + missing])
        more[f"max_length_{side}"] = max(int(batch[f"max_length_{side}"]), missing)
    return {**batch, **more}
