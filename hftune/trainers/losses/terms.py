"""What a preference loss is computed from: log-probabilities, their ratios as scores, and length desensitisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import logsigmoid

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
