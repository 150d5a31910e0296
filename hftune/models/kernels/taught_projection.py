"""From a student's hidden states to its divergence from a teacher, a chunk of the vocabulary's logits at a time.

Each chunk's gradient is computed as soon as its logits are: those of the hidden states and, where the head is trained,
those of its weight and bias (as in `answer_projection.py`). Neither side's logits exist for all tokens at any time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from hftune.distributed import zero
from hftune.models.kernels.answer_projection import LogitShape
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
from hftune.models.kernels.divergences import COLUMNS, taught
from hftune.models.kernels.lessons import FLOOR, Lesson


@torch.compiler.disable
def taught_loss(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
    factors: torch.Tensor,
    lesson: Lesson,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sum of factor * what `Divergence` says, a float32 scalar, and `COLUMNS` without a gradient, (tokens,) each.

    Args:
        head: The student's.
        hidden: (tokens, size) of the student.
        targets: The labels, (tokens,).
        shape: What the student does to logits.
        factors: (tokens,), float32.
    """
    slopes = torch.is_grad_enabled() and (hidden.requires_grad or is_trained(head))
    # Heads that ZeRO-3 gathers chunk by chunk must have as many chunks in all processes, for which `_by_module` cares.
    by_chunk = any(not is_plain(one) and zero.is_any_partitioned(one) for one in lesson.targets.heads)
    if is_plain(head) and not by_chunk:
        # Called as a module, so that ZeRO-3 gathers its weight.
        teach_head(head)
        loss, *columns = head(hidden, answer_options=(_TaughtHead, targets, shape, detail, factors, lesson, slopes))
        return loss, dict(zip(COLUMNS, columns, strict=False))
    return _by_module(head, hidden, targets, shape, detail, factors, lesson, slopes)


class _TaughtHead(torch.autograd.Function):
    """(tokens, size) hidden states to the loss and the columns, with all gradients computed on the way."""

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
        lesson: Lesson,
        slopes: bool,
    ) -> Columns:
        """The loss, a float32 scalar, then the columns, none of which has a gradient."""
        wanted = [slopes and each for each in ctx.needs_input_grad[:3]]
        to_hidden, to_weight, to_bias = new_gradients(hidden, weight, bias, wanted)
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        dtype = product_dtype(weight)
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        # 16 bits hold shares of the largest factor; one over all tokens of a batch might be too small for them.
        largest = factors.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
        found: list[Columns] = []
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        opened = lesson.targets.opened(weight.shape[0], lesson.divergence.temperature)
        with opened as teacher, in_float32(hidden.device):
            for rows in chunk_slices(hidden, weight.shape[0]):
                part, by = hidden[rows].to(dtype), factors[rows] / largest
                raw = linear(part, weight, bias)
                logits = shape(raw)
                chunk = taught(logits, targets[rows], teacher(rows), lesson.divergence, detail)
                loss += (factors[rows] * chunk.losses).sum()
                found.append(chunk.columns)
                if not any(wanted):
                    continue
                known = chunk.slope.shape[1]
                slope = chunk.slope if shape.plain else chunk.slope.mul_(shape.slope(logits[:, :known]))
                low = slope.to(dtype)
                if to_hidden is not None:
                    to_hidden[rows] = low @ weight[:known]
                if to_weight is not None:
                    add_product(to_weight[:known], low, (part * by[:, None]).to(dtype))
                if to_bias is not None:
                    to_bias[:known].addmv_(slope.T, by)
        ctx.gradients = (to_hidden, to_weight, to_bias)
        ctx.save_for_backward(factors, largest)
        columns = tuple(torch.cat(column) for column in zip(*found, strict=True))
        ctx.mark_non_differentiable(*columns)
        return loss, *columns

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        """What was found, times the gradient of the loss; once only, since it is scaled in place."""
        factors, largest = ctx.saved_tensors
        (to_hidden, *to_head), ctx.gradients = ctx.gradients, None
        if to_hidden is not None:
            to_hidden = to_hidden.mul_((factors * gradient)[:, None])
        pairs = zip(to_head, ctx.dtypes, strict=True)
        scaled = (None if each is None else each.mul_(largest * gradient).to(dtype) for each, dtype in pairs)
        return to_hidden, *scaled, *[None] * 6


class _TaughtLogits(torch.autograd.Function):
    """What a head gave, (tokens, vocabulary), to the loss, (1,), and the columns."""

    @staticmethod
    def forward(
        ctx: Any,
        raw: torch.Tensor,
        targets: torch.Tensor,
        shape: LogitShape,
        detail: int,
        factors: torch.Tensor,
        lesson: Lesson,
        slopes: bool,
    ) -> Columns:
        """Keeps the gradient with respect to `raw` where `slopes` are wanted."""
        opened = lesson.targets.opened(raw.shape[1], lesson.divergence.temperature)
        with opened as teacher:
            said = teacher(slice(None))
        with in_float32(raw.device):
            logits = shape(raw).clamp(min=FLOOR)
            chunk = taught(logits, targets, said, lesson.divergence, detail)
            if slopes:
                known = chunk.slope.shape[1]
                slope = chunk.slope if shape.plain else chunk.slope.mul_(shape.slope(logits[:, :known]))
                ctx.save_for_backward(slope.to(raw.dtype), factors)
                ctx.missing = raw.shape[1] - known
            loss = (factors * chunk.losses).sum()[None]
        ctx.mark_non_differentiable(*chunk.columns)
        return loss, *chunk.columns

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        """Tokens of the vocabulary that do not matter have none."""
        slope, factors = ctx.saved_tensors
        slope = (slope * (factors * gradient)[:, None]).to(slope.dtype)
        return torch.nn.functional.pad(slope, (0, ctx.missing)) if ctx.missing else slope, *[None] * 6


def _by_module(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
    factors: torch.Tensor,
    lesson: Lesson,
    slopes: bool,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The same through the head as it is: quantised, with an adapter, or of a class of its own."""

    def score(part: torch.Tensor, rows: slice | None) -> Columns:
        if rows is None:
            ids, by, said = targets.new_zeros(1), factors.new_zeros(1), lesson.targets.made_up()
        else:
            ids, by, said = targets[rows], factors[rows], lesson.targets.part(rows)
        one = Lesson(said, lesson.divergence)
        columns: Columns = _TaughtLogits.apply(head(part), ids, shape, detail, by, one, slopes)
        return columns

    found, nothing = through_module(head, hidden, score, *lesson.targets.heads)
    losses, *columns = (torch.cat(column) for column in zip(*found, strict=True))
    return losses.sum() + nothing, dict(zip(COLUMNS, columns, strict=False))
