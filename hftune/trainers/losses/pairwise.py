"""Losses of a chosen and a rejected answer against a reference: (B,) each, from `Terms`.

z below is the difference of scores, log(pi/pi_ref)(chosen) - log(pi/pi_ref)(rejected) for the reverse KL; s is the
logistic function; e is `label_smoothing`.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import logsigmoid, relu

from hftune.trainers.losses.terms import Terms

MIN_DIFFERENCE = 1e-6
"""Added to a difference of scores before its logarithm, as in ERNIEKit."""


def smoothed_logistic(logits: torch.Tensor, smoothing: float) -> torch.Tensor:
    """-(1 - e) log s(x) - e log s(-x), of any shape: cross entropy with labels that are wrong with probability e."""
    if not smoothing:
        return -logsigmoid(logits)
    return -(1 - smoothing) * logsigmoid(logits) - smoothing * logsigmoid(-logits)


def sigmoid(terms: Terms) -> torch.Tensor:
    """DPO, -log s(beta z) (arXiv:2305.18290, eq. 7); with e conservative DPO (ericmitchell.ai/cdpo.pdf).

    With `offset_alpha` a, beta z - a log(difference of the answers' scores): ODPO (arXiv:2402.10571, eq. 6), written
    a / beta before the factor beta in ERNIEKit. A pair without scores has the difference 1, which is no offset.
    """
    logits = terms.settings.beta * terms.delta
    if terms.settings.offset_alpha and terms.differences is not None:
        # Added before the logarithm since two answers may have the same score.
        logits = logits - terms.settings.offset_alpha * torch.log(terms.differences + MIN_DIFFERENCE)
    return smoothed_logistic(logits, terms.settings.label_smoothing)


def sigmoid_norm(terms: Terms) -> torch.Tensor:
    """DPO with scores a token, -log s(beta (score/length - score/length)) (Tulu 3, arXiv:2411.15124, eq. 6)."""
    return smoothed_logistic(terms.settings.beta * terms.delta_a_token, terms.settings.label_smoothing)


def hinge(terms: Terms) -> torch.Tensor:
    """max(0, 1 - beta z) (SLiC, arXiv:2305.10425, normalised as in RSO, arXiv:2309.06657)."""
    return relu(1 - terms.settings.beta * terms.delta)


def ipo(terms: Terms) -> torch.Tensor:
    """(z a token - 1 / (2 beta))^2 (arXiv:2310.12036, eq. 17; a token, as its authors compute it)."""
    return (terms.delta_a_token - 1 / (2 * terms.settings.beta)) ** 2


def exo_pair(terms: Terms) -> torch.Tensor:
    """KL of (s(beta z), s(-beta z)) from (1 - e, e), e > 0 (EXO, arXiv:2402.00856, eq. 16)."""
    logits, smoothing = terms.settings.beta * terms.delta, terms.settings.label_smoothing
    won = torch.sigmoid(logits) * (logsigmoid(logits) - math.log1p(-smoothing))
    lost = torch.sigmoid(-logits) * (logsigmoid(-logits) - math.log(smoothing))
    return won + lost


def robust(terms: Terms) -> torch.Tensor:
    """(-(1 - e) log s(beta z) + e log s(-beta z)) / (1 - 2 e), e < 0.5: unbiased under flips (arXiv:2403.00409)."""
    logits, smoothing = terms.settings.beta * terms.delta, terms.settings.label_smoothing
    return (-(1 - smoothing) * logsigmoid(logits) + smoothing * logsigmoid(-logits)) / (1 - 2 * smoothing)


def discopop(terms: Terms) -> torch.Tensor:
    """Logistic and exponential loss of beta z, mixed by s(beta z / tau) (DiscoPOP, arXiv:2406.08414, eq. 5)."""
    logits = terms.settings.beta * terms.delta
    share = torch.sigmoid(logits / terms.settings.discopop_tau)
    return -logsigmoid(logits) * (1 - share) + torch.exp(-logits) * share


def nca_pair(terms: Terms) -> torch.Tensor:
    """-log s(c) - log s(-c) / 2 - log s(-r) / 2, c and r beta times the log ratios (NCA, arXiv:2402.05369, eq. 14)."""
    chosen, rejected = _rewards(terms)
    return -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)


def bco_pair(terms: Terms) -> torch.Tensor:
    """-log s(c) - log s(-r), without the shift of the rewards (BCO, arXiv:2404.04656)."""
    chosen, rejected = _rewards(terms)
    return -logsigmoid(chosen) - logsigmoid(-rejected)


def sppo_hard(terms: Terms) -> torch.Tensor:
    """Squared distance of the log ratios from 1 / (2 beta) and -1 / (2 beta) (SPPO, arXiv:2405.00675, eq. 4.7)."""
    half = 0.5 / terms.settings.beta
    return (terms.chosen_ratios - half) ** 2 + (terms.rejected_ratios + half) ** 2


def aot(terms: Terms) -> torch.Tensor:
    """Logistic loss of sorted policy margins less sorted reference margins (AOT paired, arXiv:2406.05882)."""
    policy = torch.sort(terms.chosen - terms.rejected).values
    reference = torch.sort(terms.ref_chosen - terms.ref_rejected).values
    return smoothed_logistic(terms.settings.beta * (policy - reference), terms.settings.label_smoothing)


def aot_unpaired(terms: Terms) -> torch.Tensor:
    """Logistic loss of sorted chosen less sorted rejected log ratios of a batch (AOT unpaired, arXiv:2406.05882)."""
    delta = torch.sort(terms.chosen_ratios).values - torch.sort(terms.rejected_ratios).values
    return smoothed_logistic(terms.settings.beta * delta, terms.settings.label_smoothing)


def apo_zero(terms: Terms) -> torch.Tensor:
    """1 - s(c) + s(r): better than the model's own answers (APO, arXiv:2408.06266, eq. 7)."""
    chosen, rejected = _rewards(terms)
    return 1 - torch.sigmoid(chosen) + torch.sigmoid(rejected)


def apo_down(terms: Terms) -> torch.Tensor:
    """s(c) + 1 - s(c - r): worse than the model's own answers (APO, arXiv:2408.06266, eq. 8)."""
    chosen, rejected = _rewards(terms)
    return torch.sigmoid(chosen) + 1 - torch.sigmoid(chosen - rejected)


def dpop(terms: Terms) -> torch.Tensor:
    """-log s(beta (z - lambda max(0, -log ratio of the chosen))) (DPO-Positive, arXiv:2402.13228, eq. 4)."""
    penalty = terms.settings.dpop_lambda * relu(-terms.chosen_ratios)
    return smoothed_logistic(terms.settings.beta * (terms.delta - penalty), terms.settings.label_smoothing)


def kto_pair(terms: Terms) -> torch.Tensor:
    """KTO on pairs, each half's KL estimated by the other: half the sum of 1 - s(.) (arXiv:2402.01306, eq. 7)."""
    # Without gradient: the estimates are constants of the batch.
    chosen_kl = terms.chosen_ratios.mean().clamp(min=0).detach()
    rejected_kl = terms.rejected_ratios.mean().clamp(min=0).detach()
    beta = terms.settings.beta
    good = 1 - torch.sigmoid(beta * (terms.chosen_ratios - rejected_kl))
    bad = 1 - torch.sigmoid(beta * (chosen_kl - terms.rejected_ratios))
    return (good + bad) / 2


def _rewards(terms: Terms) -> tuple[torch.Tensor, torch.Tensor]:
    return terms.settings.beta * terms.chosen_ratios, terms.settings.beta * terms.rejected_ratios
