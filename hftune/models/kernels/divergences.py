"""Divergences of a student from a teacher over some tokens' vocabulary, and the loss that minimises them."""

from __future__ import annotations

from typing import Any

import torch
from torch.linalg import vecdot

from hftune.distributed import zero
from hftune.models.kernels.answer_projection import LogitShape
from hftune.models.kernels.chunked_heads import Columns, in_float32, is_plain, through_head
from hftune.models.kernels.lessons import FLOOR, Divergence, Lesson, TopTargets, tempered

COLUMNS = ("divergence", "teacher_entropy", "log_probs", "entropy", "is_top1")
"""What is measured of each token: the first alone with detail 0."""


def taught_loss(
    head: Any,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    shape: LogitShape,
    detail: int,
    factors: torch.Tensor,
    lesson: Lesson,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Sum of factor * what `Divergence` says, a float32 scalar, and `COLUMNS` without a gradient, (tokens,) each.

    Neither side's logits exist for all tokens at any time.

    Args:
        head: The student's.
        hidden: (tokens, size) of the student.
        targets: The labels, (tokens,).
        shape: What the student does to logits.
        factors: (tokens,), float32.
    """
    how, given = lesson.divergence, lesson.targets

    def chunk(raw: torch.Tensor, ids: torch.Tensor, teacher: torch.Tensor | TopTargets) -> Columns:
        with in_float32(raw.device):
            # Logits of a head that is more than a projection may be -inf: 0 * inf would be NaN.
            return taught(shape(raw).clamp(min=FLOOR), ids, teacher, how, detail)

    def alone(raw: torch.Tensor, rows: slice | None) -> Columns:
        one = given.made_up() if rows is None else given.part(rows)
        with one.opened(raw.shape[1], how.temperature) as teacher:
            return chunk(raw, targets.new_zeros(1) if rows is None else targets[rows], teacher(slice(None)))

    if not is_plain(head) or any(not is_plain(one) and zero.is_any_partitioned(one) for one in given.heads):
        # Heads that ZeRO-3 gathers chunk by chunk must have as many chunks in all processes.
        loss, _, *columns = through_head(head, hidden, alone, factors, given.heads)
    else:
        # Gathered once for all chunks.
        with given.opened(head.out_features, how.temperature) as teacher:
            score = lambda raw, rows: chunk(raw, targets[rows], teacher(rows))  # noqa: E731
            loss, _, *columns = through_head(head, hidden, score, factors)
    return loss, dict(zip(COLUMNS, columns, strict=False))


def taught(
    logits: torch.Tensor, ids: torch.Tensor, teacher: torch.Tensor | TopTargets, how: Divergence, detail: int
) -> Columns:
    """What is minimised of each token, (tokens,), and then `COLUMNS` without a gradient.

    Args:
        logits: Of the student, (tokens, vocabulary).
        teacher: What it says of these tokens.
    """
    width = teacher.shape[1] if isinstance(teacher, torch.Tensor) else teacher.vocabulary
    student = own = tempered(logits[:, :width], how.temperature)
    share = how.hard_label_share
    if (detail or share) and (how.temperature != 1.0 or width != logits.shape[1]):
        own = tempered(logits, 1.0)
    if isinstance(teacher, TopTargets):
        divergence, entropy = diverge_at_top(student, teacher, how.beta)
    else:
        divergence, entropy = diverge(student, teacher, how.beta)
    label = own.gather(1, ids[:, None]).squeeze(1)
    value = (1 - share) * divergence - share * label if share else divergence
    if how.max_teacher_entropy is not None:
        value = value * (entropy <= how.max_teacher_entropy)
    columns = [divergence.detach()]
    if detail:
        known = own.detach()
        # Of several that are the largest, one is the most likely.
        columns += [entropy, label.detach(), -vecdot(known.exp(), known), known.max(dim=1).indices == ids]
    return value, *columns


def diverge(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Divergence, with a gradient, and the teacher's entropy, (tokens,), from log-probabilities (tokens, outcomes).

    Of sums over p log p the gradient of p alone is taken: that of the logarithms adds up to 0, as all p are 1 together.
    """
    given = teacher.exp()
    entropy = -vecdot(given, teacher)
    if beta == 0.0:
        # From differences, which are exact where the two are nearly equal.
        return vecdot(given, teacher - student), entropy
    chances = student.exp()
    if beta == 1.0:
        return vecdot(chances, (student - teacher).detach()), entropy
    # Where both underflow, the logarithm must stay a number: times 0, it does not matter which.
    middle = torch.lerp(chances.detach(), given, beta).clamp_(min=torch.finfo(chances.dtype).tiny).log_()
    own = vecdot(chances, student.detach() - middle)
    return beta * vecdot(given, teacher - middle) + (1 - beta) * own, entropy


def diverge_at_top(student: torch.Tensor, teacher: TopTargets, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The same where only some tokens are known, with all others as one outcome: entropies are those of outcomes."""
    present = teacher.ids >= 0
    at = teacher.ids.clamp(min=0)
    tiny = torch.finfo(student.dtype).tiny
    chances = student.exp()
    # Exactly 0 where a token is known, so that the rest is that of the others however small it is.
    rest = chances.scatter_add(1, at, -chances.gather(1, at).mul(present))
    own = rest.sum(dim=1, keepdim=True).clamp(min=tiny)
    known = teacher.log_probs.to(student.dtype).masked_fill(~present, FLOOR)
    # What a sum of probabilities leaves of 1 is known no better than to float32's precision.
    left = (1 - known.exp().sum(dim=1, keepdim=True)).clamp_(min=torch.finfo(torch.float32).eps)
    left = left.masked_fill(present.sum(dim=1, keepdim=True) >= student.shape[1], tiny)
    outcomes = torch.cat([student.gather(1, at).masked_fill(~present, FLOOR), own.log()], dim=1)
    return diverge(outcomes, torch.cat([known, left.log()], dim=1), beta)
