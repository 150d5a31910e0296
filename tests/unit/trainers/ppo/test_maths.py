"""PPO's formulas against plain loops written from the papers, and values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hftune.trainers.ppo.maths import (
    explained_variance,
    gae,
    kl_estimate,
    masked_mean,
    masked_var,
    policy_losses,
    token_rewards,
    value_losses,
    whiten,
)

TIGHT = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Five answers of 1 to 7 tokens, with rubbish behind their ends."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([7, 3, 1, 5, 6])
    mask = (torch.arange(7) < lengths[:, None]).long()

    def draw() -> torch.Tensor:
        return torch.randn(5, 7, generator=generator, dtype=torch.float64)

    return {"mask": mask, "rewards": draw(), "values": draw(), "advantages": draw(), "logps": draw(), "old": draw()}


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Schulman 2015, eq. 16 as a double sum over one finished answer: A_t = sum_l (gamma lam)^l delta_{t+l}."""
    values = [*values, 0.0]
    deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(rewards))]
    advantages = [
        sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, len(deltas))) for t in range(len(deltas))
    ]
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=False)]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (1.0, 0.0)])
def test_advantages_and_returns_are_the_papers(batch: dict, gamma: float, lam: float) -> None:
    advantages, returns = gae(batch["rewards"], batch["values"], batch["mask"], gamma=gamma, lam=lam)
    for row in range(5):
        length = int(batch["mask"][row].sum())
        rewards, values = (batch[name][row, :length].tolist() for name in ("rewards", "values"))
        wanted = plain_gae(rewards, values, gamma, lam)
        for found, right in zip((advantages, returns), wanted, strict=True):
            torch.testing.assert_close(found[row, :length], torch.tensor(right, dtype=torch.float64), **TIGHT)
            assert not found[row, length:].any(), "nothing behind the end"


def test_the_score_is_paid_at_the_last_token_and_kl_at_each() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]])
    kl = torch.tensor([[0.1, -0.2, 9.0], [0.0, 0.5, 1.0], [9.0, 9.0, 9.0]])
    found = token_rewards(torch.tensor([2.0, -1.0, 5.0]), kl, mask, beta=0.5)
    # -0.5 * 0.1; -0.5 * -0.2 + 2 | 0; -0.25; -0.5 - 1 | an empty answer earns nothing
    right = torch.tensor([[-0.05, 2.1, 0.0], [0.0, -0.25, -1.5], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(found, right)


def test_policy_loss_is_the_papers(batch: dict) -> None:
    losses, clipped = policy_losses(batch["logps"], batch["old"], batch["advantages"], low=0.2, high=0.28)
    for place in torch.cartesian_prod(torch.arange(5), torch.arange(7)).tolist():
        row, step = place
        ratio = math.exp(float(batch["logps"][row, step] - batch["old"][row, step]))
        advantage = float(batch["advantages"][row, step])
        objective = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
        assert float(losses[row, step]) == pytest.approx(-objective, abs=1e-6)
        # Clipped: a good token that is likely enough by now, or a bad one that is unlikely enough.
        assert bool(clipped[row, step]) == (ratio > 1.28 if advantage > 0 else ratio < 0.8)


def test_value_loss_takes_the_larger_error(batch: dict) -> None:
    values, old, returns = batch["values"], batch["old"], batch["rewards"]
    old = torch.where(torch.arange(7) < 2, values + 0.1, old)  # some are near enough
    losses, larger = value_losses(values, old, returns, clip=0.2)
    for value, before, wanted, found, was_larger in zip(
        *(tensor.flatten().tolist() for tensor in (values, old, returns, losses, larger)), strict=True
    ):
        near = min(max(value, before - 0.2), before + 0.2)
        assert found == pytest.approx(max((value - wanted) ** 2, (near - wanted) ** 2) / 2, abs=1e-6)
        assert was_larger is ((near - wanted) ** 2 > (value - wanted) ** 2)
    plain, clipped = value_losses(values, old, returns, clip=None)
    torch.testing.assert_close(plain, (values - returns) ** 2 / 2)
    assert clipped.dtype == larger.dtype == torch.bool and not clipped.any()


def test_whitening_is_over_tokens_and_over_ranks(batch: dict) -> None:
    values, mask = batch["advantages"], batch["mask"]
    alone = values[mask.bool()]
    whole = whiten(values, mask)
    torch.testing.assert_close(whole[mask.bool()], (alone - alone.mean()) / alone.std(), **TIGHT)
    assert not whole[~mask.bool()].any()
    unshifted = whiten(values, mask, shift_mean=False)[mask.bool()]
    torch.testing.assert_close(unshifted, (alone - alone.mean()) / alone.std() + alone.mean(), **TIGHT)

    # Two ranks with 2 and 3 answers. A rank's sum is added to the other's, which came by the same two calls.
    first, second = (values[:2], mask[:2]), (values[2:], mask[2:])
    mean = masked_mean(values, mask)

    def from_other(other: tuple[torch.Tensor, torch.Tensor]):
        there, kept = other[0], other[1].double()
        sums = iter(
            [
                torch.stack([(there * kept).sum(), kept.sum()]),
                torch.stack([(there * kept).sum(), kept.sum()]),
                torch.stack([((there - mean) ** 2 * kept).sum(), kept.sum()]),
            ]
        )
        return lambda tensor: tensor + next(sums)

    found = torch.cat([whiten(*first, reduce=from_other(second)), whiten(*second, reduce=from_other(first))])
    torch.testing.assert_close(found, whole, **TIGHT)


def test_masked_statistics_are_torchs(batch: dict) -> None:
    kept = batch["values"][batch["mask"].bool()]
    torch.testing.assert_close(masked_mean(batch["values"], batch["mask"]), kept.mean(), **TIGHT)
    torch.testing.assert_close(masked_var(batch["values"], batch["mask"]), kept.var(), **TIGHT)
    one = torch.zeros_like(batch["mask"])
    assert masked_mean(batch["values"], one) == masked_var(batch["values"], one) == 0, "of no token"
    one[0, 0] = 1
    assert masked_mean(batch["values"], one) == batch["values"][0, 0]
    assert masked_var(batch["values"], one) == 0
    two = torch.tensor([[1, 0, 1]])
    assert masked_var(torch.tensor([[3.0, 9.0, 7.0]]), two) == 8.0, "2^2 + 2^2, over one less than two"
    assert whiten(torch.tensor([[3.0, 9.0, 3.0]]), two).tolist() == [[0.0] * 3], "what is equal is 0"


def test_estimators_of_kl_have_its_mean() -> None:
    """Over all tokens, weighted by the policy: k1 and k3 are exactly KL; k3 is never negative."""
    generator = torch.Generator().manual_seed(1)
    policy = torch.randn(50, generator=generator, dtype=torch.float64).log_softmax(0)
    other = (policy + 0.1 * torch.randn(50, generator=generator, dtype=torch.float64)).log_softmax(0)
    exact = float((policy.exp() * (policy - other)).sum())
    means = {kind: float((policy.exp() * kl_estimate(policy, other, kind)).sum()) for kind in ("k1", "k3")}
    assert means["k1"] == pytest.approx(exact, abs=1e-6)
    assert means["k3"] == pytest.approx(exact, abs=1e-6)
    assert (kl_estimate(policy, other, "k3") >= 0).all()
    assert (kl_estimate(policy, other, "k1") < 0).any()


def test_explained_variance() -> None:
    returns, mask = torch.tensor([[1.0, 2.0, 3.0, 9.0]]), torch.tensor([[1, 1, 1, 0]])
    assert explained_variance(returns, returns, mask) == pytest.approx(1.0)
    assert explained_variance(torch.full((1, 4), 5.0), returns, mask) == pytest.approx(0.0)
    assert math.isnan(explained_variance(returns, torch.ones(1, 4), mask)), "nothing to explain"
    assert explained_variance(returns / 2, returns / 2, mask) == 1.0, "however little it is"
