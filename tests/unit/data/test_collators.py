"""Batches against literal tensors, a comment a row."""

from __future__ import annotations

import torch

from hftune.constants import IGNORE_INDEX
from hftune.data.collators import CausalCollator

EXAMPLES = [
    {"input_ids": [5, 6, 0], "labels": [IGNORE_INDEX, 6, 0]},
    {"input_ids": [7], "labels": [7]},
]


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


def test_pads_to_a_multiple() -> None:
    batch = CausalCollator(pad_token_id=9, pad_to_multiple_of=4)(EXAMPLES)
    expected = torch.tensor(
        [
            [5, 6, 0, 9],  # 3 rounded up to 4
            [7, 9, 9, 9],
        ]
    )
    torch.testing.assert_close(batch["input_ids"], expected)
    assert {name: tensor.shape for name, tensor in batch.items()} == dict.fromkeys(batch, (2, 4))
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_length_that_is_a_multiple_stays() -> None:
    batch = CausalCollator(pad_token_id=9, pad_to_multiple_of=3)(EXAMPLES)
    assert batch["input_ids"].shape == (2, 3)


def test_tensors_are_taken_too() -> None:
    examples = [{name: torch.tensor(value) for name, value in example.items()} for example in EXAMPLES]
    batch = CausalCollator(pad_token_id=0)(examples)
    torch.testing.assert_close(batch["labels"], CausalCollator(pad_token_id=0)(EXAMPLES)["labels"])
