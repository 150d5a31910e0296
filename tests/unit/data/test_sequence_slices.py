"""Slices of a row: literal tensors."""

from __future__ import annotations

import torch

from hftune.data.collators import FlatCollator, sliced
from hftune.distributed.sequence_parallel import SequenceGroup

X = -100


def row() -> dict:
    """Documents of 3 and 4 tokens; the second's last two are trained, and all but the first of the first."""
    return FlatCollator()(
        [
            {"input_ids": [10, 11, 12], "labels": [10, 11, 12], "loss_weights": [0.1, 0.2, 0.3]},
            {"input_ids": [20, 21, 22, 23], "labels": [X, X, 22, 23], "loss_weights": [0.0, 0.0, 0.6, 0.7]},
        ]
    )


def of(rank: int, size: int, batch: dict | None = None) -> dict:
    return sliced(batch or row(), SequenceGroup(size, rank).slice_of, size)


def test_two_slices() -> None:
    first, second = of(0, 2), of(1, 2)
    assert first["input_ids"].tolist() == [[10, 11, 12, 20]]
    assert second["input_ids"].tolist() == [[21, 22, 23]]
    assert first["position_ids"].tolist() == [[0, 1, 2, 0]]
    assert second["position_ids"].tolist() == [[1, 2, 3]]
    # Each place holds what comes after it: 12 is predicted from 11, nothing from the ends of documents.
    assert first["shift_labels"].tolist() == [[11, 12, X, X]]
    assert second["shift_labels"].tolist() == [[22, 23, X]]
    assert torch.equal(first["labels"], first["shift_labels"])
    assert torch.allclose(first["loss_weights"], torch.tensor([[0.2, 0.3, 0.0, 0.0]]))
    assert torch.allclose(second["loss_weights"], torch.tensor([[0.6, 0.7, 0.0]]))
    # And so do the places of targets.
    rows = row() | {"teacher_rows": torch.tensor([[-1, 0, 1, -1, -1, 2, 3]])}
    assert [of(rank, 2, rows)["teacher_rows"].tolist() for rank in (0, 1)] == [[[0, 1, -1, -1]], [[2, 3, -1]]]
    for part in (first, second):
        assert part["cu_seq_lens_q"].tolist() == part["cu_seq_lens_k"].tolist() == [0, 3, 7]
        assert part["max_length_q"] == 4


def test_the_label_after_a_slice_is_kept() -> None:
    """The border of slices lies within a document: 21 belongs to the second, and is predicted by the first."""
    batch = FlatCollator()([{"input_ids": [20, 21], "labels": [20, 21]}])
    assert of(0, 2, batch)["shift_labels"].tolist() == [[21]]
    assert of(1, 2, batch)["shift_labels"].tolist() == [[X]]


def test_nothing_is_lost_or_counted_twice() -> None:
    for size in range(1, 8):
        parts = [of(rank, size) for rank in range(size)]
        assert torch.cat([part["input_ids"] for part in parts], dim=1).tolist() == row()["input_ids"].tolist()
        trained = torch.cat([part["shift_labels"] for part in parts], dim=1)
        assert trained[trained != X].tolist() == [11, 12, 22, 23]


def test_a_row_shorter_than_the_group_is_filled_up() -> None:
    batch = FlatCollator()([{"input_ids": [10, 11], "labels": [10, 11]}])
    parts = [of(rank, 4, batch) for rank in range(4)]
    assert [part["input_ids"].tolist() for part in parts] == [[[10]], [[11]], [[0]], [[0]]]
    assert [part["shift_labels"].tolist() for part in parts] == [[[11]], [[X]], [[X]], [[X]]]
    assert parts[0]["cu_seq_lens_q"].tolist() == [0, 2, 4]  # a document of its own
    assert parts[3]["position_ids"].tolist() == [[1]]
