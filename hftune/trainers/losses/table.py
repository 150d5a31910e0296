"""All preference losses by name, and what each needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hftune.trainers.losses import pairwise, reference_free, unpaired
from hftune.trainers.losses.terms import Settings, Terms


@dataclass(frozen=True)
class Loss:
    """A loss.

    Args:
        of: (B,) from terms of B pairs; the mean over pairs is trained.
        reference: Whether it looks at the reference.
        average: Whether its implicit reward is an average over tokens, not a sum.
        likelihood: The factor of what is added to that mean: the mean negative log-probability of chosen tokens.
    """

    of: Callable[[Terms], torch.Tensor]
    reference: bool = True
    average: bool = False
    likelihood: Callable[[Settings], float] = lambda settings: 0.0


def _whole(settings: Settings) -> float:
    return 1.0


def _cpo_alpha(settings: Settings) -> float:
    return settings.cpo_alpha


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
    "sft": Loss(reference_free.sft, reference=False, likelihood=_whole),
    "simpo": Loss(reference_free.simpo, reference=False, average=True),
    "cpo": Loss(reference_free.cpo, reference=False, likelihood=_cpo_alpha),
    "cpo_simpo": Loss(reference_free.simpo, reference=False, average=True, likelihood=_cpo_alpha),
    "odds_ratio": Loss(reference_free.odds_ratio, reference=False, average=True),
    "orpo": Loss(reference_free.orpo, reference=False, average=True, likelihood=_whole),
    "kto": Loss(unpaired.kto_of_pairs),
    "apo_zero_unpaired": Loss(unpaired.apo_zero_of_pairs),
}


@dataclass(frozen=True)
class Parts:
    """The losses of B pairs before their means are taken, so that these can be over a global batch.

    Args:
        of_pairs: (B,), of which the mean over pairs is trained.
        of_tokens: (B,), sums over the tokens of each chosen answer, of which the mean over tokens is trained; None: 0.
    """

    of_pairs: torch.Tensor
    of_tokens: torch.Tensor | None = None

    def over(self, counted: torch.Tensor) -> torch.Tensor:
        """The loss, a scalar, if there are `counted` pairs and chosen tokens, (2,)."""
        # Sums of none are 0 and no NaN: a rank's last batch may hold fillers alone. They keep the graph.
        loss = self.of_pairs.sum() / counted[0]
        return loss if self.of_tokens is None else loss + self.of_tokens.sum() / counted[1]


def combined(terms: Terms, names: list[str], weights: list[float], pair_weights: torch.Tensor | None) -> Parts:
    """The weighted sum of several losses.

    Args:
        pair_weights: A factor a pair, (B,), without gradient (WPO); None: 1.
    """
    each = torch.ones_like(terms.chosen) if pair_weights is None else pair_weights
    of_pairs = torch.zeros_like(terms.chosen)
    likelihood = 0.0
    for name, weight in zip(names, weights, strict=True):
        of_pairs = of_pairs + weight * LOSSES[name].of(terms)
        likelihood += weight * LOSSES[name].likelihood(terms.settings)
    return Parts(of_pairs * each, likelihood * terms.nll * each if likelihood else None)
