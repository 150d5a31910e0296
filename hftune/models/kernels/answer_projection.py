"""From hidden states to log-probabilities of given tokens, a chunk of the vocabulary's logits at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from hftune.models.kernels.chunked_heads import Columns, Score, in_float32, through_head


@dataclass(frozen=True)
class LogitShape:
    """What comes of what a head gives: scale * x, then softcap * tanh(x / softcap), then / temperature."""

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, config: PreTrainedConfig) -> LogitShape:
        """From a model's config; the names are those of transformers' architectures."""
        text = config.get_text_config()
        scale = next(
            (
                value
                for name in ("logit_scale", "output_multiplier", "lm_head_multiplier")
                if (value := getattr(text, name, None)) is not None
            ),
            None,
        )
        # Granite divides by `logits_scaling`; HyperCLOVA X multiplies by the field of that name.
        divisor = getattr(text, "logits_scaling", None)
        if scale is None and divisor is not None:
            scale = divisor if text.model_type == "hyperclovax" else 1 / divisor
        # MiniCPM and Inkling divide their states, before a head without a bias.
        if scale is None and getattr(text, "dim_model_base", None):
            scale = text.dim_model_base / text.hidden_size
        if scale is None and getattr(text, "logits_mup_width_multiplier", None):
            scale = 1 / text.logits_mup_width_multiplier
        return cls(1.0 if scale is None else float(scale), getattr(text, "final_logit_softcapping", None))

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Logits of the model from those of its head, float32, of any shape."""
        logits = raw.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.temperature == 1.0 else logits / self.temperature


def answer_log_probs(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
    *,
    entropy_learns: bool = False,
) -> Columns:
    """From hidden states (tokens, size) and targets (tokens,) to the first columns of `AnswerOutput`.

    Args:
        detail: 0 log-probabilities alone, 1 entropy and `is_top1` as well, 2 all.
        entropy_learns: Whether the entropy has a gradient, as the log-probability has it.
    """
    score = _scored(targets, shape, detail, entropy_learns=entropy_learns)
    log_probs, _, *rest = through_head(head, hidden, score, several=entropy_learns)
    return log_probs, *rest


def weighted_loss(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
    factors: torch.Tensor,
    *,
    dft: bool = False,
) -> tuple[torch.Tensor, Columns]:
    """-sum of factor * log_prob, a float32 scalar, and the columns without a gradient.

    Args:
        factors: (tokens,), float32.
        dft: Scale each by its token's probability, held constant (arXiv:2508.05629).
    """
    loss, _, *columns = through_head(head, hidden, _scored(targets, shape, detail, dft=dft), -factors)
    return loss, tuple(columns)


def _scored(
    targets: torch.Tensor, shape: LogitShape, detail: int, *, dft: bool = False, entropy_learns: bool = False
) -> Score:
    """What is minimised of each token, its log-probability without a gradient, and what else is asked for."""

    def score(raw: torch.Tensor, rows: slice | None) -> Columns:
        ids = targets.new_zeros(1) if rows is None else targets[rows]
        logits = shape(raw)
        every = logits.log_softmax(dim=1)
        own = every.gather(1, ids[:, None]).squeeze(1)
        value = own * own.detach().exp() if dft else own
        with in_float32(raw.device):
            columns = _measured(logits.detach(), every if entropy_learns else every.detach(), ids, detail)
        return value, own.detach(), *columns

    return score


def _measured(logits: torch.Tensor, every: torch.Tensor, ids: torch.Tensor, detail: int) -> Columns:
    """From logits and log-probabilities, (tokens, vocabulary) each."""
    if not detail:
        return ()
    chances = every.exp()
    # Of several that are the largest, one is the most likely.
    columns = (-torch.linalg.vecdot(chances, every), every.max(dim=1).indices == ids)
    if detail == 1:
        return columns
    return (*columns, logits.mean(dim=1), torch.linalg.vecdot(chances, chances).log())
