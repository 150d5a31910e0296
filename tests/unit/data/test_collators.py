"""Batches against literal tensors, a comment a row."""

from __future__ import annotations

import pytest
import torch

from hftune.constants import IGNORE_INDEX
from hftune.data.collators import CausalCollator, FlatCollator

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


def test_tensors_are_taken_too() -> None:
    examples = [{name: torch.tensor(value) for name, value in example.items()} for example in EXAMPLES]
    batch = CausalCollator(pad_token_id=0)(examples)
    torch.testing.assert_close(batch["labels"], CausalCollator(pad_token_id=0)(EXAMPLES)["labels"])


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
