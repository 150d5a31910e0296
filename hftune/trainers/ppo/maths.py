"""The formulas of PPO as pure functions of tensors.

Shapes: B completions, C tokens in the longest; `mask` (B, C) is 1 where a token belongs to its completion, so always on
the first tokens of a row. Log-probabilities, KL and entropy are in nats, everything is float32 or float64.

Papers: GAE (Schulman et al. 2015, arXiv:1506.02438), PPO (Schulman et al. 2017, arXiv:1707.06347), KL in the reward
(Ziegler et al. 2019, arXiv:1909.08593), separate critic from the reward model (Stiennon et al. 2020,
arXiv:2009.01325), details (Huang et al. 2024, arXiv:2403.17031, "The N+ Implementation Details of RLHF with PPO").
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over all ranks; what comes back has the same shape."""


def own_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The `Reduce` of a single process."""
    return tensor


def masked_mean(values: torch.Tensor, mask: torch.Tensor, reduce: Reduce = own_sum) -> torch.Tensor:
    """Mean of `values` where `mask` is 1, over all ranks; a scalar, 0 for no token."""
    mask = mask.to(values.dtype)
    total, count = reduce(torch.stack([(values * mask).sum(), mask.sum()]))
    return total / count.clamp(min=1)


def masked_var(values: torch.Tensor, mask: torch.Tensor, reduce: Reduce = own_sum) -> torch.Tensor:
    """Unbiased variance of `values` where `mask` is 1, over all ranks, in two passes; a scalar, 0 below two tokens."""
    mean = masked_mean(values, mask, reduce)
    mask = mask.to(values.dtype)
    squares, count = reduce(torch.stack([((values - mean) ** 2 * mask).sum(), mask.sum()]))
    return squares / (count - 1).clamp(min=1)


def whiten(
    values: torch.Tensor, mask: torch.Tensor, *, shift_mean: bool = True, reduce: Reduce = own_sum
) -> torch.Tensor:
    """Scale to a standard deviation of 1, and shift to a mean of 0, over the tokens of all ranks.

    Rewards are whitened without the shift (Ziegler 2019; detail 23 of Huang 2024), advantages with it.

    Returns:
        (B, C), 0 where the mask is.
    """
    mean = masked_mean(values, mask, reduce)
    # 1e-8 as in the papers' code: equal rewards give 0, not NaN.
    whitened = (values - mean) * torch.rsqrt(masked_var(values, mask, reduce) + 1e-8)
    return (whitened if shift_mean else whitened + mean) * mask


def kl_estimate(logps: torch.Tensor, other: torch.Tensor, kind: str) -> torch.Tensor:
    """Estimate of KL(policy || other) a token, for tokens drawn from the policy (joschu.net/blog/kl-approx).

    With x = log other - log policy: k1 = -x (of either sign), k3 = e^x - 1 - x (never negative); both are unbiased.

    Args:
        logps: Log-probabilities of the drawn tokens under the policy, any shape.
        other: Those under the reference, of the same shape.
        kind: "k1" or "k3".
    """
    x = other - logps
    if kind == "k1":
        return -x
    assert kind == "k3", kind
    # expm1: near 0 the difference of exp(x) and 1 would lose all digits.
    return torch.expm1(x) - x


def token_rewards(scores: torch.Tensor, kl: torch.Tensor, mask: torch.Tensor, beta: float) -> torch.Tensor:
    """Rewards (B, C): -beta * KL at each token, and the score of the completion at its last (Ziegler 2019, eq. 2).

    Args:
        scores: (B,), one a completion.
        kl: (B, C), an estimate a token.
        beta: The KL coefficient, in units of reward a nat.
    """
    rewards = -beta * kl * mask
    lengths = mask.sum(dim=1).long()
    written = lengths > 0
    rows = torch.arange(len(scores), device=scores.device)[written]
    # An answer of no tokens has no last one.
    rewards[rows, lengths[written] - 1] += scores[written]
    return rewards


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimates and the returns that the critic learns (Schulman 2015, eq. 16).

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}; behind the last token both V and A are 0,
    also where a completion was cut. Returns are A_t + V_t.

    Args:
        rewards: (B, C).
        values: (B, C); V_t is the value of all tokens before the t-th of the completion.
        gamma: Discount a token.
        lam: 0 for one-step differences, 1 for returns less values.

    Returns:
        Advantages and returns, both (B, C) and 0 where the mask is.
    """
    mask = mask.to(values.dtype)
    values, rewards = values * mask, rewards * mask
    advantages = torch.zeros_like(values)
    carried, following = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    # From the end, since each estimate holds all that follow it.
    for step in reversed(range(values.shape[1])):
        delta = rewards[:, step] + gamma * following - values[:, step]
        carried = (delta + gamma * lam * carried) * mask[:, step]
        following = values[:, step]
        advantages[:, step] = carried
    return advantages, (advantages + values) * mask


def policy_losses(
    logps: torch.Tensor, old_logps: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped surrogate a token: -min(r A, clip(r, 1 - low, 1 + high) A), r = pi / pi_old (PPO, eq. 7).

    Returns:
        Losses (B, C), and where the clipped branch was taken (B, C; no gradient flows there).
    """
    ratio = (logps - old_logps).exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high)
    return torch.maximum(plain, clipped), clipped > plain


def value_losses(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, *, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Half the squared error of the critic a token, the larger of plain and clipped (detail 12 of Huang 2024).

    max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2.

    Args:
        clip: In units of value; None does not clip.

    Returns:
        Losses (B, C), and where the clipped error was the larger one (B, C).
    """
    plain = (values - returns) ** 2
    if clip is None:
        return plain / 2, torch.zeros_like(plain, dtype=torch.bool)
    near = torch.minimum(torch.maximum(values, old_values - clip), old_values + clip)
    clipped = (near - returns) ** 2
    return torch.maximum(plain, clipped) / 2, clipped > plain


def explained_variance(
    values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, reduce: Reduce = own_sum
) -> float:
    """1 - Var(R - V) / Var(R) over the tokens of all ranks: 1 for a perfect critic, 0 for a constant one."""
    spread = masked_var(returns, mask, reduce)
    return float(1 - masked_var(returns - values, mask, reduce) / spread) if spread > 0 else math.nan
