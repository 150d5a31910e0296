"""Losses of single answers that are good or bad: (answers,) each."""

from __future__ import annotations

import torch

from hftune.trainers.losses.terms import Settings, Terms


def kto(ratios: torch.Tensor, desirable: torch.Tensor, kl: torch.Tensor | float, settings: Settings) -> torch.Tensor:
    """w (1 - s(beta (ratio - kl))) for good answers, w' (1 - s(beta (kl - ratio))) for bad ones (arXiv:2402.01306).

    Args:
        ratios: log pi / pi_ref of answers, (answers,).
        desirable: Bool, (answers,).
        kl: Estimate of the KL from mismatched answers, >= 0, without gradient; a scalar.

    Returns:
        (answers,); eq. 7 of the paper up to its constant.
    """
    # One formula for both: a bad answer has the signs of ratio and KL turned.
    sign = torch.where(desirable, 1.0, -1.0).to(ratios)
    return _weights(desirable, settings).to(ratios) * (1 - torch.sigmoid(settings.beta * sign * (ratios - kl)))


def apo_zero_unpaired(ratios: torch.Tensor, desirable: torch.Tensor, settings: Settings) -> torch.Tensor:
    """1 - s(beta ratio) for good, s(beta ratio) for bad answers: KTO with KL 0 (APO, arXiv:2408.06266, eq. 7)."""
    return kto(ratios, desirable, 0.0, settings)


def kto_of_pairs(terms: Terms) -> torch.Tensor:
    """KTO where each pair gives a good and a bad answer: the mean of both, (B,), KL from `terms.kl`."""
    kl = torch.zeros(()) if terms.kl is None else terms.kl
    good = torch.ones_like(terms.chosen, dtype=torch.bool)
    kl = kl.to(terms.chosen)
    chosen = kto(terms.chosen_ratios, good, kl, terms.settings)
    rejected = kto(terms.rejected_ratios, ~good, kl, terms.settings)
    return (chosen + rejected) / 2


def _weights(desirable: torch.Tensor, settings: Settings) -> torch.Tensor:
    good, bad = (torch.tensor(weight) for weight in (settings.desirable_weight, settings.undesirable_weight))
    return torch.where(desirable, good.to(desirable.device), bad.to(desirable.device))


def of_answers(
    name: str, ratios: torch.Tensor, desirable: torch.Tensor, kl: torch.Tensor, settings: Settings
) -> torch.Tensor:
    """The loss called `name` of single answers, (answers,); arguments as those of `kto`."""
    assert name in ("kto", "apo_zero_unpaired"), name
    return kto(ratios, desirable, kl if name == "kto" else 0.0, settings)


def apo_zero_of_pairs(terms: Terms) -> torch.Tensor:
    """`apo_zero_unpaired` of both answers of a pair: their mean, (B,)."""
    good = torch.ones_like(terms.chosen, dtype=torch.bool)
    chosen = apo_zero_unpaired(terms.chosen_ratios, good, terms.settings)
    rejected = apo_zero_unpaired(terms.rejected_ratios, ~good, terms.settings)
    return (chosen + rejected) / 2
