"""Losses of a mixture of experts' routers, as pure functions."""

from __future__ import annotations

from collections.abc import Callable

import torch

Sum = Callable[[torch.Tensor], torch.Tensor]


def balance_loss(
    shares: torch.Tensor,
    chosen: torch.Tensor,
    mask: torch.Tensor | None = None,
    over: tuple[int, Sum] | None = None,
) -> torch.Tensor:
    """Load balancing: E * sum over experts of f * P (Switch Transformer, arXiv:2101.03961, eq. 4-6).

    f is an expert's share of the tokens that it is chosen for, P its mean probability. It is k, the number of experts
    a token goes to, where all experts are used alike, and grows with imbalance. Equals transformers'
    `load_balancing_loss_func`, and DeepSeek-V3's (arXiv:2412.19437, eq. 17-20, times k) over a batch.

    Args:
        shares: Probabilities of experts, (tokens of all layers, experts), each row adding up to 1.
        chosen: Indices of the experts that a token went to, (tokens of all layers, k).
        mask: 1 for tokens that count, 0 for padding, (tokens of all layers); left out: all count.
        over: Where processes have slices of the rows: how many, and the sum over them. The mean of their losses is
            then that of the whole rows, and so is the mean of gradients.

    Returns:
        A float32 scalar. Its gradient goes through `shares` alone.
    """
    experts = shares.shape[1]
    shares = shares.float()
    weights = torch.ones(len(shares), device=shares.device) if mask is None else mask.float()
    total = weights.sum()
    hits = torch.zeros(experts, device=shares.device)
    # Counts of a choice have no gradient: it flows through the probabilities alone.
    hits = hits.index_add(0, chosen.reshape(-1), weights.repeat_interleave(chosen.shape[1]))
    probability = (shares * weights[:, None]).sum(dim=0)
    if over is not None:
        size, whole = over
        # times size: gradients are means over processes, and each sees only its part of the sum.
        total, hits, probability = whole(total), whole(hits), probability * size
    # A batch of nothing but padding.
    total = total.clamp(min=1.0)
    return experts * ((hits / total) * (probability / total)).sum()


def z_loss(logits: torch.Tensor, mask: torch.Tensor | None = None, over: tuple[int, Sum] | None = None) -> torch.Tensor:
    """Mean of the squared log of the sum of exponentials of router logits (ST-MoE, arXiv:2202.08906, eq. 5).

    Args:
        logits: Router logits, (tokens of all layers, experts). A mean over layers as well, so that a coefficient means
            the same for models of any depth.
        mask: 1 for tokens that count, 0 for padding, (tokens of all layers); left out: all count.
        over: As for `balance_loss`.

    Returns:
        A float32 scalar.
    """
    squares = torch.logsumexp(logits.float(), dim=1).square()
    weights = torch.ones_like(squares) if mask is None else mask.float()
    size, whole = over or (1, None)
    total = weights.sum() if whole is None else whole(weights.sum())
    return size * (squares * weights).sum() / total.clamp(min=1.0)
