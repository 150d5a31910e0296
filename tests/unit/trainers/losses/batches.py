"""Log-probabilities of a small batch of pairs, for tests of losses."""

from __future__ import annotations

from typing import Any

import torch

from hftune.trainers.losses.divergences import desensitised, scores
from hftune.trainers.losses.terms import Settings, Terms

LENGTHS = ((5, 3), (2, 6), (4, 4))
"""Tokens of chosen and rejected answers."""


def per_token(seed: int = 0) -> torch.Tensor:
    """Log-probabilities of all tokens, chosen answers first, (tokens,), float64."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(map(sum, LENGTHS))
    return -3 * torch.rand(total, generator=generator, dtype=torch.float64) - 0.05


def lengths() -> torch.Tensor:
    """(answers,), chosen first."""
    return torch.tensor([*(one for one, _ in LENGTHS), *(other for _, other in LENGTHS)])


def terms(
    policy: torch.Tensor,
    reference: torch.Tensor,
    settings: Settings | None = None,
    ld: float | None = None,
    **more: Any,
) -> Terms:
    """As the trainer makes them."""
    settings = settings or Settings()
    sizes = lengths()
    half = len(sizes) // 2
    shared = torch.minimum(sizes[:half], sizes[half:]).repeat(2)
    chosen, rejected = desensitised(policy, sizes, shared, ld).chunk(2)
    ref_chosen, ref_rejected = desensitised(reference, sizes, shared, ld).chunk(2)
    kind, alpha = settings.f_divergence_type, settings.f_alpha_divergence_coef
    first = int(sizes[:half].sum())
    return Terms(
        chosen, rejected, ref_chosen, ref_rejected, sizes[:half].to(chosen), sizes[half:].to(chosen),
        scores(chosen - ref_chosen, kind, alpha), scores(rejected - ref_rejected, kind, alpha),
        nll=-desensitised(policy[:first], sizes[:half], sizes[:half], None), settings=settings, **more,
    )  # fmt: skip
