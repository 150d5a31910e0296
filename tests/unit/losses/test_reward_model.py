"""Losses of reward models against values worked out by hand, and TRL's where TRL has the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hftune.losses.reward_model import bradley_terry, centring, step_loss

LOG2, LOG3 = math.log(2), math.log(3)
# Distances log 3 and 0: sigmoid(log 3) = 3 / 4, sigmoid(0) = 1 / 2.
CHOSEN, REJECTED = torch.tensor([LOG3 + 1, 0.5]), torch.tensor([1.0, 0.5])


@pytest.mark.parametrize(
    ("options", "losses"),
    [
        # -log(3 / 4) = log 4 - log 3; -log(1 / 2) = log 2
        ({}, [2 * LOG2 - LOG3, LOG2]),
        # log 3 - log 3 = 0, p = 1 / 2; 0 - log 3, p = 1 / 4
        ({"margin": torch.tensor([LOG3, LOG3])}, [LOG2, 2 * LOG2]),
        ({"weight": torch.tensor([3.0, 0.0])}, [3 * (2 * LOG2 - LOG3), 0.0]),
        # 0.9 x -log(3 / 4) + 0.1 x -log(1 / 4); an even pair stays log 2
        ({"label_smoothing": 0.1}, [2 * LOG2 - 0.9 * LOG3, LOG2]),
    ],
)
def test_by_hand(options: dict[str, Any], losses: list[float]) -> None:
    torch.testing.assert_close(bradley_terry(CHOSEN, REJECTED, **options), torch.tensor(losses))


def test_far_apart_is_finite_and_16_bit_scores_are_widened() -> None:
    losses = bradley_terry(torch.tensor([-500.0]).bfloat16(), torch.tensor([500.0]).bfloat16())
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, torch.tensor([1000.0]))


def test_centring() -> None:
    torch.testing.assert_close(centring(torch.tensor([2.0, 1.0]), torch.tensor([1.0, -1.0])), torch.tensor([9.0, 0.0]))


def test_steps() -> None:
    logits = torch.tensor([[0.0, LOG3], [5.0, 5.0], [1.0, 1.0 + LOG3]])
    # p(right) = 3 / 4, 1 / 2, 3 / 4; labels right, wrong, and right half of the times.
    expected = torch.tensor([2 * LOG2 - LOG3, LOG2, 2 * LOG2 - 0.5 * LOG3])
    torch.testing.assert_close(step_loss(logits, torch.tensor([1.0, 0.0, 0.5])), expected)
    hard = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 0, 1]), reduction="none", label_smoothing=0.2)
    # torch's smoothing spreads e over both classes, so its 0.2 is our 0.1.
    torch.testing.assert_close(step_loss(logits, torch.tensor([1.0, 0.0, 1.0]), label_smoothing=0.1), hard)
