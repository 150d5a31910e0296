"""Losses of routers: values worked out by hand, and transformers' own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from hftune.losses.routers import balance_loss, z_loss


def test_balance_by_hand() -> None:
    # Two experts, one a token: three tokens go to expert 0, one to expert 1. f = (3/4, 1/4), P = (0.65, 0.35).
    shares = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.2, 0.8]])
    chosen = torch.tensor([[0], [0], [0], [1]])
    # 2 * (0.75 * 0.65 + 0.25 * 0.35) = 1.15
    assert balance_loss(shares, chosen).item() == pytest.approx(1.15)
    # One token, one expert: 2 * 0.9. Nothing but padding: 0.
    assert balance_loss(shares, chosen, torch.tensor([1, 0, 0, 0])).item() == pytest.approx(1.8)
    assert balance_loss(shares, chosen, torch.zeros(4)).item() == 0
    # Without the last token f = (1, 0) and P = (0.8, 0.2): 2 * 0.8 = 1.6
    assert balance_loss(shares, chosen, torch.tensor([1, 1, 1, 0])).item() == pytest.approx(1.6)


def test_experts_used_alike_give_k() -> None:
    shares = torch.full((8, 4), 0.25)
    chosen = torch.tensor([[0, 1], [2, 3]] * 4)
    assert balance_loss(shares, chosen).item() == pytest.approx(2.0)


@pytest.mark.parametrize("masked", [False, True])
def test_balance_is_transformers_own(masked: bool) -> None:
    torch.manual_seed(0)
    layers = tuple(torch.randn(12, 4, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]]) if masked else None
    wanted = load_balancing_loss_func(layers, num_experts=4, top_k=2, attention_mask=mask)
    logits = torch.cat(layers)
    flat = None if mask is None else mask.reshape(-1).repeat(3)
    found = balance_loss(logits.softmax(-1), logits.topk(2, dim=-1).indices, flat)
    torch.testing.assert_close(found, wanted)
    ours = torch.autograd.grad(found, layers[1])[0]
    torch.testing.assert_close(ours, torch.autograd.grad(wanted, layers[1])[0])


def test_z_by_hand() -> None:
    # log(e^0 + e^0) = log 2; log(e^1 + e^2) = 2.313262
    logits = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    wanted = (math.log(2) ** 2 + 2.313262**2) / 2
    assert z_loss(logits).item() == pytest.approx(wanted, rel=1e-5)
    assert z_loss(logits, torch.tensor([1, 0])).item() == pytest.approx(math.log(2) ** 2, rel=1e-5)


def test_half_precision_is_summed_in_float32() -> None:
    logits = torch.full((4, 64), 9.0, dtype=torch.bfloat16)
    assert z_loss(logits).dtype == torch.float32
    assert z_loss(logits).item() == pytest.approx((9 + math.log(64)) ** 2, rel=1e-6)


@pytest.mark.parametrize("loss", ["balance", "z"])
def test_slices_of_rows_have_the_loss_and_gradient_of_the_whole(loss: str) -> None:
    """Two processes with 5 and 3 tokens, two of them padding: the mean of their losses, and of their gradients."""
    torch.manual_seed(0)
    logits, mask = torch.randn(8, 4, requires_grad=True), torch.tensor([1, 1, 0, 1, 1, 1, 1, 0])

    def loss_of(at: slice, over: Any = None) -> torch.Tensor:
        part = logits[at]
        if loss == "z":
            return z_loss(part, mask[at], over)
        return balance_loss(part.softmax(-1), part.topk(2, dim=-1).indices, mask[at], over)

    parts, sums = [slice(0, 5), slice(5, 8)], [[], []]
    for own, at in zip(sums, parts, strict=True):
        loss_of(at, (2, lambda value, own=own: own.append(value) or value))
    summed = [one + other for one, other in zip(*sums, strict=True)]
    answers = [iter(summed), iter(summed)]
    found = sum(loss_of(at, (2, lambda _, own=own: next(own))) for own, at in zip(answers, parts, strict=True)) / 2
    torch.testing.assert_close(found, loss_of(slice(0, 8)))
    torch.testing.assert_close(
        torch.autograd.grad(found, logits)[0], torch.autograd.grad(loss_of(slice(0, 8)), logits)[0]
    )
