"""All preference losses by name, and what each needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hftune.trainers.losses import pairwise, reference_free, unpaired
from hftune.trainers.losses.terms import Terms


@dataclass(frozen=True)
class Loss:
    """A loss.

    Args:
        of: (B,) from terms of B pairs.
        reference: Whether it looks at the reference.
        average: Whether its implicit reward is an average over tokens, not a sum.
    """

    of: Callable[[Terms], torch.Tensor]
    reference: bool = True
    average: bool = False


LOSSES: dict[str, Loss] = {
    "sigmoid": Loss(pairwise.sigmoid),
    "hinge": Loss(pairwise.hinge),
    "ipo": Loss(pairwise.ipo),
    "exo_pair": Loss(pairwise.exo_pair),
    "nca_pair": Loss(pairwise.nca_pair),
    "robust": Loss(pairwise.robust),
    "bco_pair": Loss(pairwise.bco_pair),
    "sppo_hard": Loss(pairwise.sppo_hard),
    "aot": Loss(pairwise.aot),
    "aot_unpaired": Loss(pairwise.aot_unpaired),
    "apo_zero": Loss(pairwise.apo_zero),
    "apo_down": Loss(pairwise.apo_down),
    "discopop": Loss(pairwise.discopop),
    "sigmoid_norm": Loss(pairwise.sigmoid_norm),
    "dpop": Loss(pairwise.dpop),
    "kto_pair": Loss(pairwise.kto_pair),
    "sft": Loss(reference_free.sft, reference=False),
    "simpo": Loss(reference_free.simpo, reference=False, average=True),
    "cpo": Loss(reference_free.cpo, reference=False),
    "cpo_simpo": Loss(reference_free.cpo_simpo, reference=False, average=True),
    "odds_ratio": Loss(reference_free.odds_ratio, reference=False, average=True),
    "orpo": Loss(reference_free.orpo, reference=False, average=True),
    "kto": Loss(unpaired.kto_of_pairs),
    "apo_zero_unpaired": Loss(unpaired.apo_zero_of_pairs),
}


def combined(terms: Terms, names: list[str], weights: list[float], pair_weights: torch.Tensor | None) -> torch.Tensor:
    """The weighted sum of the means of several losses, a scalar.

    Args:
        pair_weights: A factor a pair, (B,), without gradient (WPO); None: 1.
    """
    total = terms.chosen.new_zeros(())
    for name, weight in zip(names, weights, strict=True):
        # Losses a pair, so that WPO's weights can be applied to any of them.
        losses = LOSSES[name].of(terms)
        total = total + weight * mean_of(losses if pair_weights is None else losses * pair_weights)
    return total


def mean_of(losses: torch.Tensor) -> torch.Tensor:
    """The mean; 0, and no NaN, of none: a rank's last batch of an evaluation may hold fillers alone."""
    return losses.mean() if len(losses) else losses.sum()
