"""Losses of reward models against values worked out by hand, and TRL's where TRL has the loss."""

from __future__ import annotations

import math

import pytest
import torch

from hftune.trainers.losses.reward_model import bradley_terry, centring, step_loss

LOG2, LOG3 = math.log(2), math.log(3)
# Distances log 3 and 0: sigmoid(log 3) = 3 / 4, sigmoid(0) = 1 / 2.
CHOSEN, REJECTED = torch.tensor([LOG3 + 1, 0.5]), torch.tensor([1.0, 0.5])


def test_plain() -> None:
    # -log(3 / 4) = log 4 - log 3; -log(1 / 2) = log 2
    torch.testing.assert_close(bradley_terry(CHOSEN, REJECTED), torch.tensor([2 * LOG2 - LOG3, LOG2]))


def test_margin() -> None:
    # log 3 - log 3 = 0, p = 1 / 2; 0 - log 3, p = 1 / 4
    losses = bradley_terry(CHOSEN, REJECTED, margin=torch.tensor([LOG3, LOG3]))
    torch.testing.assert_close(losses, torch.tensor([LOG2, 2 * LOG2]))


def test_weight() -> None:
    losses = bradley_terry(CHOSEN, REJECTED, weight=torch.tensor([3.0, 0.0]))
    torch.testing.assert_close(losses, torch.tensor([3 * (2 * LOG2 - LOG3), 0.0]))


def test_label_smoothing() -> None:
    # 0.9 x -log(3 / 4) + 0.1 x -log(1 / 4); an even pair stays log 2
    losses = bradley_terry(CHOSEN, REJECTED, label_smoothing=0.1)
    torch.testing.assert_close(losses, torch.tensor([2 * LOG2 - 0.9 * LOG3, LOG2]))
    # Least where the odds are those of right labels: sigmoid(d) = 1 - e.
    distance = torch.tensor([math.log(9.0)], requires_grad=True)
    (gradient,) = torch.autograd.grad(bradley_terry(distance, torch.zeros(1), label_smoothing=0.1).sum(), distance)
    assert gradient.abs().item() < 1e-7


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


@pytest.mark.parametrize("margin", [None, torch.tensor([0.3, -1.0, 2.0])])
def test_as_trl_computes_it(margin: torch.Tensor | None) -> None:
    """The formula of trl.RewardTrainer.compute_loss (1.16), which has no function of its own to call."""
    torch.manual_seed(0)
    chosen, rejected = torch.randn(3), torch.randn(3)
    theirs = -torch.nn.functional.logsigmoid(chosen - rejected - (0 if margin is None else margin)).mean()
    theirs = theirs + 0.01 * torch.mean((chosen + rejected) ** 2)
    ours = bradley_terry(chosen, rejected, margin=margin).mean() + 0.01 * centring(chosen, rejected).mean()
    torch.testing.assert_close(ours, theirs)
