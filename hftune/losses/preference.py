"""All preference losses by name: (B,) each, from `Terms` (log-probabilities, ratios as scores), and what each needs.

z below is the difference of scores, log(pi/pi_ref)(chosen) - log(pi/pi_ref)(rejected) for the reverse KL; s is the
logistic function; e is `label_smoothing`. The mean negative log-probability of chosen tokens, which some losses without
a reference have beside them, is added by `combined`: it is a mean over tokens, not over pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import logsigmoid, relu

MIN_DIFFERENCE = 1e-6
"""Added to a difference of scores before its logarithm, as in ERNIEKit."""

_MAX_EXPONENT = {torch.float16: 11.0, torch.bfloat16: 80.0, torch.float32: 80.0, torch.float64: 700.0}


@dataclass(frozen=True)
class Terms:
    """A batch of B pairs. Log-probabilities are sums over an answer's tokens, in nats, floating point of shape (B,).

    Args:
        chosen, rejected: log pi(answer | prompt) of the policy; with a gradient in training.
        ref_chosen, ref_rejected: The same of the reference; zeros where there is none.
        chosen_tokens, rejected_tokens: Tokens of each answer, (B,).
        chosen_scores, rejected_scores: What `scores` makes of the log ratios; the log ratios themselves
            for the reverse KL.
        differences: Score of the chosen less that of the rejected answer, > 0, (B,); None where records have none.
        nll: Negative log-probability of each chosen answer in full, (B,): over its tokens, the SFT loss.
        settings: The numbers of the losses under the names that they have in `DPOArguments`.
        kl: Estimate of beta-free KL(policy, reference) for KTO, a scalar without gradient.
    """

    chosen: torch.Tensor
    rejected: torch.Tensor
    ref_chosen: torch.Tensor
    ref_rejected: torch.Tensor
    chosen_tokens: torch.Tensor
    rejected_tokens: torch.Tensor
    chosen_scores: torch.Tensor
    rejected_scores: torch.Tensor
    nll: torch.Tensor
    settings: Any
    differences: torch.Tensor | None = None
    kl: torch.Tensor | None = None

    @property
    def chosen_ratios(self) -> torch.Tensor:
        """log pi / pi_ref of the chosen answers, (B,)."""
        return self.chosen - self.ref_chosen

    @property
    def rejected_ratios(self) -> torch.Tensor:
        """log pi / pi_ref of the rejected answers, (B,)."""
        return self.rejected - self.ref_rejected

    @property
    def delta(self) -> torch.Tensor:
        """Difference of scores, (B,), for the losses built on it."""
        return self.chosen_scores - self.rejected_scores

    @property
    def delta_a_token(self) -> torch.Tensor:
        """Difference of scores, each divided by the tokens of its answer, (B,)."""
        return self.chosen_scores / self.chosen_tokens - self.rejected_scores / self.rejected_tokens

    @property
    def averages(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability a token of both answers, (B,) each: what reference-free losses compare."""
        # Lengths are at least 1: the end token counts.
        return self.chosen / self.chosen_tokens, self.rejected / self.rejected_tokens


def scores(ratios: torch.Tensor, divergence: str, alpha: float) -> torch.Tensor:
    """f'(u) of u = pi / pi_ref: what stands for the log ratio where f-DPO replaces the reverse KL (arXiv:2309.16240).

    Additive constants that cancel between the two answers are kept, so that all are 0 at u = 1 but for the
    Jensen-Shannon divergence's, f'(u) = log(2u / (1 + u)), which is as well.

    Args:
        ratios: log u, (B,).
        divergence: reverse_kl: log u; forward_kl: 1 - 1/u (f = -log u); js_divergence; alpha_divergence:
            (u^(alpha - 1) - 1) / (alpha - 1), log u in the limit alpha = 1.
    """
    if divergence == "reverse_kl":
        return ratios
    if divergence == "forward_kl":
        return 1 - torch.exp(-ratios)
    if divergence == "js_divergence":
        return math.log(2) + logsigmoid(ratios)
    assert divergence == "alpha_divergence", divergence
    # 0 / 0 there; the limit is the log ratio.
    if abs(alpha - 1) < 1e-6:
        return ratios
    # exp overflows beyond: the loss would be inf, and its gradient NaN.
    exponent = ((alpha - 1) * ratios).clamp(max=_MAX_EXPONENT[ratios.dtype])
    return (torch.exp(exponent) - 1) / (alpha - 1)


def desensitised(
    per_token: torch.Tensor, lengths: torch.Tensor, shared: torch.Tensor, ld_alpha: float | None
) -> torch.Tensor:
    """Sums over answers, tokens beyond the shorter answer's length scaled by `ld_alpha` (LD-DPO, arXiv:2409.06411).

    Args:
        per_token: Log-probabilities of all answers' tokens, one answer after the other, (tokens,).
        lengths: Tokens of each answer, (answers,); they add up to `tokens`.
        shared: For each answer the tokens that count in full, (answers,): the shorter length of its pair.
        ld_alpha: 0 leaves the rest out; 1 or None is the plain sum.

    Returns:
        (answers,), of the dtype of `per_token`.
    """
    # Without output_size the host waits for the GPU, to learn how long the result is.
    numbers = torch.arange(len(lengths), device=per_token.device)
    answer = torch.repeat_interleave(numbers, lengths, output_size=len(per_token))
    if ld_alpha is not None:
        starts = lengths.cumsum(0) - lengths
        place = torch.arange(len(answer), device=per_token.device) - starts[answer]
        per_token = torch.where(place < shared[answer], per_token, ld_alpha * per_token)
    return per_token.new_zeros(len(lengths)).index_add(0, answer, per_token)


OfPairs = Callable[[Terms], torch.Tensor]
Factor = Callable[[Any], float]


@dataclass(frozen=True)
class Loss:
    """A loss.

    Args:
        of: (B,) from terms of B pairs; the mean over pairs is trained.
        likelihood: The factor of what is added to that mean: the mean negative log-probability of chosen tokens.
        difference: Computed from the difference of two scores, in which the constant cancels that an f-divergence
            other than the reverse KL adds to both.
        reference: Whether it looks at a reference model.
        a_token: Divides by the length of an answer.
        smoothed: Whether `label_smoothing` changes it.
        sorts: Sorts the answers of a batch: its value depends on which rows share one.
        unpaired: Of single answers with a label.
    """

    of: OfPairs
    likelihood: Factor = lambda settings: 0.0
    difference: bool = False
    reference: bool = True
    a_token: bool = False
    smoothed: bool = False
    sorts: bool = False
    unpaired: bool = False


LOSSES: dict[str, Loss] = {}


def loss(name: str = "", **about: Any) -> Callable[[OfPairs], OfPairs]:
    """Put a function into `LOSSES` under its own name or another, with what `Loss` asks of it.

    The command line, its rules and its help page follow.
    """

    def put(of: OfPairs) -> OfPairs:
        LOSSES[name or of.__name__] = Loss(of, **about)
        return of

    return put


def losses_with(trait: str, value: bool = True) -> frozenset[str]:
    """Names of the losses of which a field of `Loss` is so."""
    return frozenset(name for name, one in LOSSES.items() if getattr(one, trait) is value)


def smoothed_logistic(logits: torch.Tensor, smoothing: float) -> torch.Tensor:
    """-(1 - e) log s(x) - e log s(-x), of any shape: cross entropy with labels that are wrong with probability e."""
    if not smoothing:
        return -logsigmoid(logits)
    return -(1 - smoothing) * logsigmoid(logits) - smoothing * logsigmoid(-logits)


@loss(difference=True, smoothed=True)
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


@loss(difference=True, a_token=True, smoothed=True)
def sigmoid_norm(terms: Terms) -> torch.Tensor:
    """DPO with scores a token, -log s(beta (score/length - score/length)) (Tulu 3, arXiv:2411.15124, eq. 6)."""
    return smoothed_logistic(terms.settings.beta * terms.delta_a_token, terms.settings.label_smoothing)


@loss(difference=True)
def hinge(terms: Terms) -> torch.Tensor:
    """max(0, 1 - beta z) (SLiC, arXiv:2305.10425, normalised as in RSO, arXiv:2309.06657)."""
    return relu(1 - terms.settings.beta * terms.delta)


@loss(difference=True, a_token=True)
def ipo(terms: Terms) -> torch.Tensor:
    """(z a token - 1 / (2 beta))^2 (arXiv:2310.12036, eq. 17; a token, as its authors compute it)."""
    return (terms.delta_a_token - 1 / (2 * terms.settings.beta)) ** 2


@loss(difference=True, smoothed=True)
def exo_pair(terms: Terms) -> torch.Tensor:
    """KL of (s(beta z), s(-beta z)) from (1 - e, e), e > 0 (EXO, arXiv:2402.00856, eq. 16)."""
    logits, smoothing = terms.settings.beta * terms.delta, terms.settings.label_smoothing
    won = torch.sigmoid(logits) * (logsigmoid(logits) - math.log1p(-smoothing))
    lost = torch.sigmoid(-logits) * (logsigmoid(-logits) - math.log(smoothing))
    return won + lost


@loss(difference=True, smoothed=True)
def robust(terms: Terms) -> torch.Tensor:
    """(-(1 - e) log s(beta z) + e log s(-beta z)) / (1 - 2 e), e < 0.5: unbiased under flips (arXiv:2403.00409)."""
    logits, smoothing = terms.settings.beta * terms.delta, terms.settings.label_smoothing
    return (-(1 - smoothing) * logsigmoid(logits) + smoothing * logsigmoid(-logits)) / (1 - 2 * smoothing)


@loss(difference=True)
def discopop(terms: Terms) -> torch.Tensor:
    """Logistic and exponential loss of beta z, mixed by s(beta z / tau) (DiscoPOP, arXiv:2406.08414, eq. 5)."""
    logits = terms.settings.beta * terms.delta
    share = torch.sigmoid(logits / terms.settings.discopop_tau)
    return -logsigmoid(logits) * (1 - share) + torch.exp(-logits) * share


@loss()
def nca_pair(terms: Terms) -> torch.Tensor:
    """-log s(c) - log s(-c) / 2 - log s(-r) / 2, c and r beta times the log ratios (NCA, arXiv:2402.05369, eq. 14)."""
    chosen, rejected = _rewards(terms)
    return -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)


@loss()
def bco_pair(terms: Terms) -> torch.Tensor:
    """-log s(c) - log s(-r), without the shift of the rewards (BCO, arXiv:2404.04656)."""
    chosen, rejected = _rewards(terms)
    return -logsigmoid(chosen) - logsigmoid(-rejected)


@loss()
def sppo_hard(terms: Terms) -> torch.Tensor:
    """Squared distance of the log ratios from 1 / (2 beta) and -1 / (2 beta) (SPPO, arXiv:2405.00675, eq. 4.7)."""
    half = 0.5 / terms.settings.beta
    return (terms.chosen_ratios - half) ** 2 + (terms.rejected_ratios + half) ** 2


@loss(smoothed=True, sorts=True)
def aot(terms: Terms) -> torch.Tensor:
    """Logistic loss of sorted policy margins less sorted reference margins (AOT paired, arXiv:2406.05882)."""
    policy = torch.sort(terms.chosen - terms.rejected).values
    reference = torch.sort(terms.ref_chosen - terms.ref_rejected).values
    return smoothed_logistic(terms.settings.beta * (policy - reference), terms.settings.label_smoothing)


@loss(smoothed=True, sorts=True)
def aot_unpaired(terms: Terms) -> torch.Tensor:
    """Logistic loss of sorted chosen less sorted rejected log ratios of a batch (AOT unpaired, arXiv:2406.05882)."""
    delta = torch.sort(terms.chosen_ratios).values - torch.sort(terms.rejected_ratios).values
    return smoothed_logistic(terms.settings.beta * delta, terms.settings.label_smoothing)


@loss()
def apo_zero(terms: Terms) -> torch.Tensor:
    """1 - s(c) + s(r): better than the model's own answers (APO, arXiv:2408.06266, eq. 7)."""
    chosen, rejected = _rewards(terms)
    return 1 - torch.sigmoid(chosen) + torch.sigmoid(rejected)


@loss()
def apo_down(terms: Terms) -> torch.Tensor:
    """s(c) + 1 - s(c - r): worse than the model's own answers (APO, arXiv:2408.06266, eq. 8)."""
    chosen, rejected = _rewards(terms)
    return torch.sigmoid(chosen) + 1 - torch.sigmoid(chosen - rejected)


@loss(difference=True, smoothed=True)
def dpop(terms: Terms) -> torch.Tensor:
    """-log s(beta (z - lambda max(0, -log ratio of the chosen))) (DPO-Positive, arXiv:2402.13228, eq. 4)."""
    penalty = terms.settings.dpop_lambda * relu(-terms.chosen_ratios)
    return smoothed_logistic(terms.settings.beta * (terms.delta - penalty), terms.settings.label_smoothing)


@loss()
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


@loss("cpo_simpo", likelihood=lambda settings: settings.cpo_alpha, reference=False, a_token=True, smoothed=True)
@loss(reference=False, a_token=True, smoothed=True)
def simpo(terms: Terms) -> torch.Tensor:
    """-log s(beta (average difference) - gamma) (SimPO, arXiv:2405.14734, eq. 6).

    The averages are log-probabilities a token. gamma is the paper's target margin, as in TRL, ERNIEKit and ms-swift;
    the paper's code gives gamma / beta (`gamma_beta_ratio`) instead.
    """
    chosen, rejected = terms.averages
    logits = terms.settings.beta * (chosen - rejected) - terms.settings.simpo_gamma
    return smoothed_logistic(logits, terms.settings.label_smoothing)


@loss(likelihood=lambda settings: 1.0, reference=False)
def sft(terms: Terms) -> torch.Tensor:
    """Zeros: all of it is the mean over chosen tokens."""
    return torch.zeros_like(terms.chosen)


@loss(likelihood=lambda settings: settings.cpo_alpha, reference=False, smoothed=True)
def cpo(terms: Terms) -> torch.Tensor:
    """-log s(beta (log pi(chosen) - log pi(rejected))): CPO (arXiv:2401.08417, eq. 7) less the NLL."""
    return smoothed_logistic(terms.settings.beta * (terms.chosen - terms.rejected), terms.settings.label_smoothing)


@loss(reference=False, a_token=True)
def odds_ratio(terms: Terms) -> torch.Tensor:
    """-log s(log odds(chosen) - log odds(rejected)), odds = p / (1 - p) of p = exp(log-probability a token)."""
    chosen, rejected = terms.averages
    odds = (chosen - rejected) - (log1mexp(chosen) - log1mexp(rejected))
    return -logsigmoid(odds)


@loss(likelihood=lambda settings: 1.0, reference=False, a_token=True)
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


def of_answers(
    name: str, ratios: torch.Tensor, desirable: torch.Tensor, kl: torch.Tensor, settings: Any
) -> torch.Tensor:
    """w (1 - s(beta (ratio - kl))) for good answers, w' (1 - s(beta (kl - ratio))) for bad ones, of single answers.

    kto: arXiv:2402.01306, eq. 7 up to its constant. apo_zero_unpaired: the same with a KL of 0 (APO, arXiv:2408.06266,
    eq. 7).

    Args:
        ratios: log pi / pi_ref of answers, (answers,).
        desirable: Bool, (answers,).
        kl: Estimate of the KL from mismatched answers, >= 0, without gradient; a scalar.

    Returns:
        (answers,)
    """
    assert name in ("kto", "apo_zero_unpaired"), name
    # One formula for both: a bad answer has the signs of ratio and KL turned.
    sign = torch.where(desirable, 1.0, -1.0).to(ratios)
    weights = torch.where(desirable, settings.desirable_weight, settings.undesirable_weight).to(ratios)
    ratios = ratios - kl if name == "kto" else ratios
    return weights * (1 - torch.sigmoid(settings.beta * sign * ratios))


def _of_both(name: str, terms: Terms) -> torch.Tensor:
    """The mean over the good and the bad answer that each pair gives, (B,)."""
    kl = torch.zeros_like(terms.chosen[:1]) if terms.kl is None else terms.kl.to(terms.chosen)
    good = torch.ones_like(terms.chosen, dtype=torch.bool)
    chosen = of_answers(name, terms.chosen_ratios, good, kl, terms.settings)
    return (chosen + of_answers(name, terms.rejected_ratios, ~good, kl, terms.settings)) / 2


@loss(unpaired=True)
def kto(terms: Terms) -> torch.Tensor:
    """`of_answers` of both answers of a pair, KL from `terms.kl`."""
    return _of_both("kto", terms)


@loss(unpaired=True)
def apo_zero_unpaired(terms: Terms) -> torch.Tensor:
    """`of_answers` of both answers of a pair."""
    return _of_both("apo_zero_unpaired", terms)


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
