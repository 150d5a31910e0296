"""The slice of a row that one of several processes trains on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hftune.constants import FILLER, IGNORE_INDEX, LABEL_COUNT, TEACHER_ROWS
from hftune.data.batches.collators import shifted

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
