"""From hidden states to log-probabilities of given tokens, a chunk of the vocabulary's logits at a time.

The log-probability of a token depends on one hidden state only, so its gradient there is known as soon as the chunk
is. Behind a frozen head (LoRA) the backward pass merely scales it. A head that is trained gets its own gradient in the
same chunk where the factor of each token's log-probability in the loss is known beforehand; else it recomputes its
chunks in the backward pass, unless they are small enough to be kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear
from transformers import PreTrainedConfig

from hftune.models.kernels.chunked_heads import (
    Columns,
    add_product,
    chunk_slices,
    in_float32,
    is_plain,
    is_trained,
    new_gradients,
    product_dtype,
    teach_head,
    through_module,
)


@dataclass(frozen=True)
class LogitShape:
    """What an architecture does to logits: scale * x, then softcap * tanh(x / softcap)."""

    scale: float = 1.0
    softcap: float | None = None

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
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    @property
    def plain(self) -> bool:
        """Whether logits are what the head gives."""
        return self.scale == 1.0 and self.softcap is None

    def slope(self, logits: torch.Tensor) -> torch.Tensor:
        """d logits / d raw, of the shape of `logits`."""
        if self.softcap is None:
            return torch.full_like(logits, self.scale)
        return (1 - (logits / self.softcap).square()) * self.scale


@torch.compiler.disable
def answer_log_probs(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, shape: LogitShape, detail: int
) -> Columns:
    """The columns from hidden states (tokens, size) and targets (tokens,); the first has a gradient."""
    if is_plain(head) and not (is_trained(head) and torch.is_grad_enabled()):
        # Called as a module, so that ZeRO-3 gathers its weight.
        teach_head(head)
        columns: Columns = head(hidden, answer_options=(_FrozenHead, targets, shape, detail))
        return columns
    return _by_module(head, hidden, targets, shape, detail)


@torch.compiler.disable
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
    if is_plain(head) and is_trained(head) and torch.is_grad_enabled():
        teach_head(head)
        loss, *columns = head(hidden, answer_options=(_TrainedHead, targets, shape, detail, factors, dft))
        return loss, tuple(columns)
    columns = answer_log_probs(head, hidden, targets, shape, detail)
    log_probs = columns[0]
    scaled = factors * log_probs.detach().exp() if dft else factors
    return -(log_probs * scaled).sum(), (log_probs.detach(), *columns[1:])


@dataclass(frozen=True)
class _Chunk:
    """A chunk's softmax, in parts: p = powers / total.

    Args:
        columns: See `Columns`.
        powers: exp(logit - largest), (tokens, vocabulary); times the slope of the logits, where that is not 1.
        total: Their sum before that, (tokens,).
        slope: d logit / d raw at the target, (tokens,); None: 1.
    """

    columns: Columns
    powers: torch.Tensor
    total: torch.Tensor
    slope: torch.Tensor | None

    @classmethod
    def of(cls, raw: torch.Tensor, ids: torch.Tensor, shape: LogitShape, detail: int) -> _Chunk:
        """From what the head gave, (tokens, vocabulary), and targets (tokens,)."""
        logits = shape(raw)
        # Of several that are the largest, one is the most likely; where nobody asks which, finding it costs too much.
        top, likeliest = logits.max(dim=1) if detail else (logits.amax(dim=1), ids)
        powers = (logits - top[:, None]).exp_()
        total = powers.sum(dim=1)
        at_target = logits.gather(1, ids[:, None])
        # Autocast would compute products with 16 bits, which is not enough for sums over a vocabulary.
        with in_float32(logits.device):
            parts = (powers, total, top, at_target.squeeze(1))
            columns = _measured(logits, likeliest == ids, parts, detail)
        if shape.plain:
            return cls(columns, powers, total, None)
        return cls(columns, powers.mul_(shape.slope(logits)), total, shape.slope(at_target).squeeze(1))

    def to_hidden(self, weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """d log_prob / d hidden state, (tokens, size), in the weight's dtype: (onehot - p) times the weight."""
        own = weight[ids] if self.slope is None else weight[ids] * self.slope[:, None].to(weight.dtype)
        expected = (self.powers.to(weight.dtype) @ weight) / self.total[:, None]
        return (own - expected).to(weight.dtype)


def _measured(logits: torch.Tensor, is_top1: torch.Tensor, parts: Columns, detail: int) -> Columns:
    powers, total, top, at_target = parts
    normaliser = top + total.log()
    columns = [at_target - normaliser]
    if detail > 0:
        # sum of p * logit without a third tensor of this size
        entropy = normaliser - torch.linalg.vecdot(powers, logits) / total
        columns += [entropy, is_top1]
    if detail > 1:
        squares = torch.linalg.vecdot(powers, powers) / total.square()
        columns += [logits.mean(dim=1), squares.log()]
    return tuple(columns)


def _projected(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
) -> Iterator[tuple[slice, torch.Tensor, _Chunk]]:
    """Chunk by chunk: which rows, their hidden states in the dtype of the weight, and what comes of their logits."""
    bias = None if bias is None else bias.to(weight.dtype)
    for rows in chunk_slices(hidden, weight.shape[0]):
        part = hidden[rows].to(weight.dtype)
        yield rows, part, _Chunk.of(linear(part, weight, bias), targets[rows], shape, detail)


class _FrozenHead(torch.autograd.Function):
    """(tokens, size) hidden states to the columns; see the module's description."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        shape: LogitShape,
        detail: int,
    ) -> Columns:
        """One chunk after the other; what the backward pass needs is as large as the hidden states."""
        slopes = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        weight = weight.to(product_dtype(weight))
        found: list[Columns] = []
        for rows, _, chunk in _projected(hidden, weight, bias, targets, shape, detail):
            found.append(chunk.columns)
            if slopes is not None:
                slopes[rows] = chunk.to_hidden(weight, targets[rows])
        ctx.save_for_backward(slopes)
        columns = _joined(found, hidden, detail)
        ctx.mark_non_differentiable(*columns[1:])
        return columns

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        """Each hidden state's slope times the gradient of its token."""
        (slopes,) = ctx.saved_tensors
        return ((slopes * gradient[:, None]).to(slopes.dtype), *[None] * 5)


class _TrainedHead(torch.autograd.Function):
    """(tokens, size) hidden states to the weighted loss and the columns, with all gradients computed on the way.

    The idea is Liger's (arXiv:2410.10989, section 3.2): logits exist once, in the forward pass, a chunk at a time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        shape: LogitShape,
        detail: int,
        factors: torch.Tensor,
        dft: bool,
    ) -> Columns:
        """The loss, a float32 scalar, then the columns, none of which has a gradient."""
        to_hidden, to_weight, to_bias = new_gradients(hidden, weight, bias, ctx.needs_input_grad)
        ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        weight = weight.to(product_dtype(weight))
        found: list[Columns] = []
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for rows, part, chunk in _projected(hidden, weight, bias, targets, shape, detail):
            ids, log_probs = targets[rows], chunk.columns[0]
            by = -factors[rows] * (log_probs.exp() if dft else 1.0)
            loss += (by * log_probs).sum()
            found.append(chunk.columns)
            if to_hidden is not None:
                to_hidden[rows] = chunk.to_hidden(weight, ids) * by[:, None]
            at_target = by if chunk.slope is None else by * chunk.slope
            if to_weight is not None:
                _add_to_weight(to_weight, chunk, part, ids, by, at_target)
            if to_bias is not None:
                with in_float32(hidden.device):
                    to_bias.index_add_(0, ids, at_target).sub_((by / chunk.total) @ chunk.powers)
        ctx.gradients = (to_hidden, to_weight, to_bias)
        columns = _joined(found, hidden, detail)
        ctx.mark_non_differentiable(*columns)
        return loss, *columns

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        """What was found, times the gradient of the loss; once only, since it is scaled in place."""
        gradients, ctx.gradients = ctx.gradients, None
        pairs = zip(gradients, ctx.dtypes, strict=True)
        return (*(None if each is None else each.mul_(gradient).to(dtype) for each, dtype in pairs), *[None] * 5)


def _add_to_weight(
    total: torch.Tensor,
    chunk: _Chunk,
    hidden: torch.Tensor,
    ids: torch.Tensor,
    by: torch.Tensor,
    at_target: torch.Tensor,
) -> None:
    """Add the sum over tokens of factor * (onehot - p) times the hidden state, in place."""
    total.index_add_(0, ids, (hidden * at_target[:, None]).to(total.dtype))
    scaled = (hidden * (by / chunk.total)[:, None]).to(hidden.dtype)
    add_product(total, chunk.powers.to(hidden.dtype), scaled, alpha=-1)


def _by_module(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, shape: LogitShape, detail: int
) -> Columns:
    """The same through the head as it is: trained, quantised, with an adapter or a bias of its own."""

    def score(part: torch.Tensor, rows: slice | None) -> Columns:
        ids = targets.new_zeros(1) if rows is None else targets[rows]
        raw = head(part)
        log_probs = shape(raw).log_softmax(dim=1).gather(1, ids[:, None]).squeeze(1)
        if not detail:
            return (log_probs,)
        with torch.no_grad():
            rest = _Chunk.of(raw, ids, shape, detail).columns[1:]
        return log_probs, *rest

    found, nothing = through_module(head, hidden, score)
    log_probs, *rest = _joined(found, hidden, detail)
    return log_probs + nothing, *rest


def _joined(found: list[Columns], hidden: torch.Tensor, detail: int) -> Columns:
    """The columns of all chunks; empty ones where a batch has no answer."""
    if not found:
        # Sums of no hidden states: of length 0, with a gradient that leads to the model.
        none = hidden.sum(dim=1).float()
        return (none, none.detach(), none.detach().bool(), none.detach(), none.detach())[: 1 + 2 * detail]
    return tuple(torch.cat(column) for column in zip(*found, strict=True))
