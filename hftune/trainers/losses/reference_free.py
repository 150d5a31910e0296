"""Losses that need no reference: (B,) each, from `Terms`.

The mean negative log-probability of chosen tokens, which some of them have beside this, is added by
`table.combined`: it is a mean over tokens, not over pairs.
"""

from __future__ import annotations

import torch
from torch.nn.functional import logsigmoid

from hftune.trainers.losses.pairwise import smoothed_logistic
from hftune.trainers.losses.terms import Terms


def simpo(terms: Terms) -> torch.Tensor:
    """-log s(beta (average difference) - gamma) (SimPO, arXiv:2405.14734, eq. 6).

    The averages are log-probabilities a token. gamma is the paper's target margin, as in TRL, ERNIEKit and ms-swift;
    the paper's code gives gamma / beta (`gamma_beta_ratio`) instead.
    """
    chosen, rejected = terms.averages
    logits = terms.settings.beta * (chosen - rejected) - terms.settings.simpo_gamma
    return smoothed_logistic(logits, terms.settings.label_smoothing)


def sft(terms: Terms) -> torch.Tensor:
    """Zeros: all of it is the mean over chosen tokens."""
    return torch.zeros_like(terms.chosen)


def cpo(terms: Terms) -> torch.Tensor:
    """-log s(beta (log pi(chosen) - log pi(rejected))): CPO (arXiv:2401.08417, eq. 7) less the NLL."""
    return smoothed_logistic(terms.settings.beta * (terms.chosen - terms.rejected), terms.settings.label_smoothing)


def odds_ratio(terms: Terms) -> torch.Tensor:
    """-log s(log odds(chosen) - log odds(rejected)), odds = p / (1 - p) of p = exp(log-probability a token)."""
    chosen, rejected = terms.averages
    odds = (chosen - rejected) - (log1mexp(chosen) - log1mexp(rejected))
    return -logsigmoid(odds)


def orpo(terms: Terms) -> torch.Tensor:
    """beta times the odds ratio loss, ORPO (arXiv:2403.07691, eq. 6; beta is its lambda) less the NLL."""
    return terms.settings.beta * odds_ratio(terms)


def log1mexp(x: torch.Tensor) -> torch.Tensor:
    """log(1 - exp(x)) for x < 0, exact near 0 and far below it (Maechler 2012); of any shape."""
    x = x.clamp(max=-torch.finfo(x.dtype).tiny)
    near = x > -0.6931472
    # Each side gets harmless values where the other counts: where() passes NaN gradients of both.
    close = torch.log(-torch.expm1(torch.where(near, x, torch.full_like(x, -1.0))))
    far = torch.log1p(-torch.exp(torch.where(near, torch.full_like(x, -1.0), x)))
    return torch.where(near, close, far)
