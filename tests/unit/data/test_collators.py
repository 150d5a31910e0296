"""Batches against literal tensors, a comment a row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hftune.constants import IGNORE_INDEX
from hftune.data.collators import CausalCollator, FlatCollator, sliced
from hftune.data.pair_collators import FlatPairCollator, PairCollator, StepCollator
from hftune.distributed.sequence_parallel import SequenceGroup

EXAMPLES = [{"input_ids": [5, 6, 0], "labels": [IGNORE_INDEX, 6, 0]}, {"input_ids": [7], "labels": [7]}]


def test_pads_on_the_right() -> None:
    batch = CausalCollator(pad_token_id=0)(EXAMPLES)
    assert list(batch) == ["input_ids", "labels", "attention_mask"]
    expected = torch.tensor(
        [
            [5, 6, 0],  # the last token is a real one that equals the pad token
            [7, 0, 0],  # two pads
        ]
    )
    torch.testing.assert_close(batch["input_ids"], expected)
    expected = torch.tensor(
        [
            [-100, 6, 0],  # prompt masked, the real 0 trained
            [7, -100, -100],  # pads masked
        ]
    )
    torch.testing.assert_close(batch["labels"], expected)
    expected = torch.tensor(
        [
            [1, 1, 1],  # the real 0 is attended
            [1, 0, 0],  # pads are not
        ]
    )
    torch.testing.assert_close(batch["attention_mask"], expected)


# --- documents side by side -------------------------------------------------------------------------------------


PACKED = [
    {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "seq_lengths": [3]},
    {"input_ids": [8, 9, 4, 3], "labels": [-100, -100, -100, 3], "seq_lengths": [1, 3], "position_ids": [0, 0, 1, 2]},
]


def test_flat_rows() -> None:
    batch = FlatCollator()(PACKED)
    expected = {
        "input_ids": torch.tensor([[5, 6, 7, 8, 9, 4, 3]]),  # both examples, no pad token
        "labels": torch.tensor([[-100, 6, 7, -100, -100, -100, 3]]),
        "position_ids": torch.tensor([[0, 1, 2, 0, 0, 1, 2]]),  # three documents, the second of one token
        "cu_seq_lens_q": torch.tensor([0, 3, 4, 7], dtype=torch.int32),  # where each begins, and the end
        "cu_seq_lens_k": torch.tensor([0, 3, 4, 7], dtype=torch.int32),
        "max_length_q": 3,
        "max_length_k": 3,
        "use_cache": False,  # else transformers does not look for documents in a row
    }
    assert set(batch) == set(expected)  # above all, no attention_mask
    for name, value in expected.items():
        assert type(batch[name]) is type(value)
        torch.testing.assert_close(batch[name], value)


def test_flat_examples_without_packing() -> None:
    batch = FlatCollator()(EXAMPLES)
    assert batch["input_ids"].tolist() == [[5, 6, 0, 7]]
    assert batch["labels"].tolist() == [[-100, 6, 0, -100]]  # the 7 begins a document: nothing predicts it
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 4]


def test_flat_rows_of_tensors() -> None:
    as_tensors = [{name: torch.tensor(value, dtype=torch.int32) for name, value in row.items()} for row in PACKED]
    given, expected = FlatCollator()(as_tensors), FlatCollator()(PACKED)
    for name in expected:
        torch.testing.assert_close(given[name], expected[name])


def test_lengths_that_do_not_cover_a_row_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="cover"):
        FlatCollator()([{"input_ids": [1, 2, 3], "labels": [1, 2, 3], "seq_lengths": [2]}])


def test_padding_does_not_mix_packed_documents() -> None:
    assert CausalCollator(pad_token_id=0)(PACKED[:1])["input_ids"].tolist() == [[5, 6, 7]]
    with pytest.raises(AssertionError, match="FlatCollator"):
        CausalCollator(pad_token_id=0)(PACKED)


def test_places_of_targets_travel_with_their_tokens() -> None:
    examples = [{**example, "teacher_rows": rows} for example, rows in zip(EXAMPLES, [[-1, 4, 5], [-1]], strict=True)]
    padded = CausalCollator(pad_token_id=0)(examples)["teacher_rows"]
    # -1 for padding: nothing is known of it
    assert padded.tolist() == [[-1, 4, 5], [-1, -1, -1]] and padded.dtype == torch.int64
    flat = FlatCollator()(examples)["teacher_rows"]
    assert isinstance(flat, torch.Tensor) and flat.tolist() == [[-1, 4, 5, -1]]


PAIRS = [
    {"chosen_ids": [1, 2, 9], "rejected_ids": [3], "margin": 0.5, "index": 4},
    {"chosen_ids": [4, 9, 9], "rejected_ids": [5, 6], "margin": 1.0, "index": 7},
]


def test_padded() -> None:
    batch = PairCollator(0)(PAIRS)
    assert batch["input_ids"].tolist() == [[1, 2, 9], [4, 9, 9], [3, 0, 0], [5, 6, 0]]
    assert batch["index"].tolist() == [4, 7] and batch["margin"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize("collator", [PairCollator(0), FlatPairCollator(9)])
def test_margins_are_numbers_of_a_loss(collator: Any) -> None:
    assert collator([{**pair, "margin": 1} for pair in PAIRS])["margin"].dtype == torch.float32
    assert collator.loss_knows_fillers is True


def test_flat() -> None:
    batch = FlatPairCollator(9)(PAIRS)
    #                                       chosen            rejected
    assert batch["input_ids"].tolist() == [[1, 2, 9, 4, 9, 9, 3, 5, 6]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 0, 0, 1]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 6, 7, 9]
    # The last token that is not the pad token, which is the end of text here.
    assert batch["ends"].tolist() == [1, 3, 6, 8]
    assert batch["margin"].tolist() == [0.5, 1.0] and batch["index"].tolist() == [4, 7]
    assert "labels" not in batch and isinstance(batch["ends"], torch.Tensor)


STEPS = [
    {"input_ids": [1, 2, 3, 4], "ends": [1, 3], "step_labels": [1.0, 0.0], "index": 5},
    {"input_ids": [6, 7], "ends": [1], "step_labels": [0.5], "index": 6},
]


@pytest.mark.parametrize(
    "flat, ids, ends", [(True, [[1, 2, 3, 4, 6, 7]], [1, 3, 5]), (False, [[1, 2, 3, 4], [6, 7, 0, 0]], [1, 3, 5])]
)
def test_batches(flat: bool, ids: list[list[int]], ends: list[int]) -> None:
    batch = StepCollator(0, flat=flat)(STEPS)
    assert batch["input_ids"].tolist() == ids and batch["ends"].tolist() == ends
    assert batch["labels"].tolist() == [1.0, 0.0, 0.5]
    assert batch["steps"].tolist() == [2, 1] and batch["index"].tolist() == [5, 6]


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


def test_a_row_shorter_than_the_group_is_filled_up() -> None:
    batch = FlatCollator()([{"input_ids": [10, 11], "labels": [10, 11]}])
    parts = [of(rank, 4, batch) for rank in range(4)]
    assert [part["input_ids"].tolist() for part in parts] == [[[10]], [[11]], [[0]], [[0]]]
    assert [part["shift_labels"].tolist() for part in parts] == [[[11]], [[X]], [[X]], [[X]]]
    assert parts[0]["cu_seq_lens_q"].tolist() == [0, 2, 4]  # a document of its own
    assert parts[3]["position_ids"].tolist() == [[1]]
