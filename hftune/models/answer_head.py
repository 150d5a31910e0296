"""Log-probabilities of answers without logits of anything else, and without logits in the backward pass.

`model(..., answer_at=places, answer_ids=tokens)` runs the decoder, picks the hidden states that predict an answer's
tokens, and projects those alone, a chunk at a time. A frozen head (LoRA) goes further: the log-probability of a token
depends on one hidden state only, so its gradient is known as soon as the chunk is, and the backward pass merely scales
it. A head that is trained recomputes its chunks in the backward pass, unless they are small enough to be kept.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

CHUNK_BYTES = {"cpu": 2**25, "cuda": 2**28}
"""Float32 logits of a chunk: small enough for the caches of a CPU, large enough to keep a GPU busy."""

KEPT_BYTES = 2**28
"""Float32 logits that a trained head may keep for the backward pass instead of computing them again."""


@dataclass
class AnswerOutput(ModelOutput):
    """Of each answer token, (tokens,), in the order of `answer_ids`; only the first has a gradient.

    Args:
        log_probs: log pi(token | what is before it), nats, float32.
        entropy: Of the distribution over the vocabulary, nats.
        mean_logits: Mean logit over the vocabulary.
        is_top1: Whether the token was the most likely one, bool.
        log_sum_sq: log of the sum of squared probabilities (WPO).
    """

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    mean_logits: torch.Tensor | None = None
    is_top1: torch.Tensor | None = None
    log_sum_sq: torch.Tensor | None = None


@dataclass(frozen=True)
class LogitShape:
    """What an architecture does to logits: scale * x, then softcap * tanh(x / softcap)."""

    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, config: Any) -> LogitShape:
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
        divisor = getattr(text, "logits_scaling", None)
        if scale is None and divisor is not None:
            scale = divisor if text.model_type == "hyperclovax" else 1 / divisor
        return cls(1.0 if scale is None else float(scale), getattr(text, "final_logit_softcapping", None))

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Logits of the model from those of its head, float32, of any shape."""
        logits = raw.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def backward(self, logits: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of what the head gave from that of `logits`; may change `gradient` in place."""
        if self.softcap is not None:
            gradient.mul_(1 - (logits / self.softcap).square())
        return gradient.mul_(self.scale) if self.scale != 1.0 else gradient


def add_answer_head(model: PreTrainedModel) -> None:
    """Teach a model (without an adapter around it) the arguments `answer_at` and `answer_ids`.

    `answer_at` (tokens,) are places in the flattened (batch * length) input whose hidden state predicts a token,
    `answer_ids` (tokens,) those tokens. Without them the model does what it did. Where an adapter prepends virtual
    tokens, `answer_width` is the length of a row without them.
    """
    original = model.forward
    shape = LogitShape.of(model.config)

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, answer_at: Any = None, answer_ids: Any = None, **kwargs: Any) -> Any:
        width = kwargs.pop("answer_width", None)
        if answer_at is None:
            return original(*args, **kwargs)
        hidden = self.base_model(*args, **{**kwargs, "use_cache": False}).last_hidden_state
        if width is not None:
            hidden = hidden[:, -width:]
        picked = hidden.reshape(-1, hidden.shape[-1]).index_select(0, answer_at)
        return AnswerOutput(*answer_log_probs(self.get_output_embeddings(), picked, answer_ids, shape))

    model.forward = types.MethodType(forward, model)


def answer_log_probs(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, shape: LogitShape
) -> tuple[torch.Tensor, ...]:
    """The fields of `AnswerOutput` from hidden states (tokens, size) and targets (tokens,)."""
    if _is_frozen(head):
        # Called as a module, so that ZeRO-3 gathers its weight.
        _answering(head)
        return head(hidden, answer_ids=targets, shape=shape)
    return _by_module(head, hidden, targets, shape)


def _is_frozen(head: Any) -> bool:
    """Whether it is a plain projection that is not trained."""
    return type(head) is torch.nn.Linear and not any(parameter.requires_grad for parameter in head.parameters())


def _answering(head: Any) -> None:
    """Let a plain head score answers where its weight is at hand."""
    if getattr(head, "scores_answers", False):
        return
    original: Callable[[torch.Tensor], torch.Tensor] = head.forward

    def forward(self: Any, hidden: torch.Tensor, answer_ids: Any = None, shape: Any = None) -> Any:
        if answer_ids is None:
            return original(hidden)
        return _FrozenHead.apply(hidden, self.weight, self.bias, answer_ids, shape)

    head.forward = types.MethodType(forward, head)
    head.scores_answers = True


def _rows(tensor: torch.Tensor, vocabulary: int) -> int:
    """Rows of a chunk."""
    return max(1, CHUNK_BYTES.get(tensor.device.type, 2**28) // (4 * vocabulary))


def _dtype(weight: torch.Tensor) -> torch.dtype:
    """What the projection is computed in."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


class _FrozenHead(torch.autograd.Function):
    """(tokens, size) hidden states to the fields of `AnswerOutput`; see the module's description."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        shape: LogitShape,
    ) -> tuple[torch.Tensor, ...]:
        """One chunk after the other; what the backward pass needs is as large as the hidden states."""
        dtype, wanted = _dtype(weight), ctx.needs_input_grad[0]
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        slopes = torch.empty_like(hidden) if wanted else None
        found: list[tuple[torch.Tensor, ...]] = []
        rows = _rows(hidden, weight.shape[0])
        for start in range(0, len(hidden), rows):
            part, ids = hidden[start : start + rows].to(dtype), targets[start : start + rows]
            logits = shape(torch.nn.functional.linear(part, weight, bias))
            measured, probabilities = _measure(logits, ids)
            found.append(measured)
            if slopes is not None:
                gradient = probabilities.neg_()
                gradient[torch.arange(len(ids), device=ids.device), ids] += 1
                slopes[start : start + rows] = shape.backward(logits, gradient).to(dtype) @ weight
        ctx.save_for_backward(slopes)
        columns = _joined(found, hidden)
        ctx.mark_non_differentiable(*columns[1:])
        return columns

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        """Each hidden state's slope times the gradient of its token."""
        (slopes,) = ctx.saved_tensors
        return (slopes * gradient[:, None]).to(slopes.dtype), None, None, None, None


def _measure(logits: torch.Tensor, ids: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Of logits (tokens, vocabulary), float32: the fields of `AnswerOutput`, and the probabilities."""
    top, best = logits.max(dim=-1)
    probabilities = (logits - top[:, None]).exp_()
    total = probabilities.sum(dim=-1)
    normaliser = top + total.log()
    probabilities.div_(total[:, None])
    log_probs = logits.gather(1, ids[:, None]).squeeze(1) - normaliser
    # sum of p * logit without a third tensor of this size
    entropy = normaliser - torch.linalg.vecdot(probabilities, logits)
    log_sum_sq = torch.linalg.vecdot(probabilities, probabilities).log()
    return (log_probs, entropy, logits.mean(dim=-1), best == ids, log_sum_sq), probabilities


def _by_module(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, shape: LogitShape
) -> tuple[torch.Tensor, ...]:
    """The same through the head as it is: trained, quantised, with an adapter or a bias of its own."""

    def score(part: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = shape(head(part))
        log_probs = logits.log_softmax(dim=-1).gather(1, ids[:, None]).squeeze(1)
        with torch.no_grad():
            _, *rest = _measure(logits, ids)[0]
        return log_probs, *rest

    vocabulary = int(getattr(head, "out_features", 0) or 2**16)
    rows = _rows(hidden, vocabulary)
    again = torch.is_grad_enabled() and 4 * len(hidden) * vocabulary > KEPT_BYTES
    found = []
    for part, ids in zip(hidden.split(rows), targets.split(rows), strict=True):
        found.append(checkpoint(score, part, ids, use_reentrant=False) if again else score(part, ids))
    return _joined(found, hidden)


def _joined(found: list[tuple[torch.Tensor, ...]], hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The columns of all chunks; empty ones, still joined to the model, where a batch has no answer."""
    if not found:
        none = hidden.sum(dim=-1).float()
        return none, none.detach(), none.detach(), none.detach().bool(), none.detach()
    return tuple(torch.cat(column) for column in zip(*found, strict=True))
