"""What a preference loss is computed from."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Settings:
    """Numbers of the losses; names and defaults are those of `run_dpo.py`."""

    beta: float = 0.1
    label_smoothing: float = 0.0
    simpo_gamma: float = 0.5
    cpo_alpha: float = 1.0
    dpop_lambda: float = 50.0
    discopop_tau: float = 0.05
    offset_alpha: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    f_divergence_type: str = "reverse_kl"
    f_alpha_divergence_coef: float = 0.5


@dataclass(frozen=True)
class Terms:
    """A batch of B pairs. Log-probabilities are sums over an answer's tokens, in nats, floating point of shape (B,).

    Args:
        chosen, rejected: log pi(answer | prompt) of the policy; with a gradient in training.
        ref_chosen, ref_rejected: The same of the reference; zeros where there is none.
        chosen_tokens, rejected_tokens: Tokens of each answer, (B,).
        chosen_scores, rejected_scores: What `divergences.scores` makes of the log ratios; the log ratios themselves
            for the reverse KL.
        differences: Score of the chosen less that of the rejected answer, > 0, (B,); None where records have none.
        nll: Negative log-probability of each chosen answer in full, (B,): over its tokens, the SFT loss.
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
    differences: torch.Tensor | None = None
    kl: torch.Tensor | None = None
    settings: Settings = field(default_factory=Settings)

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
