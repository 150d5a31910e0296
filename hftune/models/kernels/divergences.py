"""Divergences of a student from a teacher over some tokens' vocabulary, with the gradients of its logits.

All is computed in place where it can be: of an intermediate result there is at most one (tokens, vocabulary) in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.linalg import vecdot

from hftune.models.kernels.chunked_heads import Columns
from hftune.models.kernels.lessons import FLOOR, Divergence, TopTargets, tempered

COLUMNS = ("divergence", "teacher_entropy", "log_probs", "entropy", "is_top1")
"""What is measured of each token: the first alone with detail 0."""


@dataclass(frozen=True)
class Taught:
    """Of a chunk.

    Args:
        columns: As in `COLUMNS`.
        losses: (tokens,); 0 where the teacher is not sure enough.
        slope: d loss / d logit, (tokens, tokens of the vocabulary that matter).
    """

    columns: Columns
    losses: torch.Tensor
    slope: torch.Tensor


def taught(
    logits: torch.Tensor,
    ids: torch.Tensor,
    teacher: torch.Tensor | TopTargets,
    how: Divergence,
    detail: int,
) -> Taught:
    """From the student's logits (tokens, vocabulary) and what the teacher says of these tokens."""
    width = teacher.shape[1] if isinstance(teacher, torch.Tensor) else teacher.vocabulary
    student = tempered(logits[:, :width], how.temperature)
    chances = student.exp()
    share = how.hard_label_share
    own, own_chances = student, chances
    if (detail or share) and (how.temperature != 1.0 or width != logits.shape[1]):
        own = tempered(logits, 1.0)
        own_chances = own.exp()
    columns: list[torch.Tensor] = []
    label = own.gather(1, ids[:, None]).squeeze(1) if detail or share else None
    if detail and label is not None:
        # Of several that are the largest, one is the most likely.
        columns = [label, -vecdot(own_chances, own), own.max(dim=1).indices == ids]
    sure = bool(detail) or how.max_teacher_entropy is not None
    if isinstance(teacher, TopTargets):
        divergence, entropy, slope = diverge_at_top(student, chances, teacher, how.beta, sure)
    else:
        divergence, entropy, slope = diverge(student, chances, teacher, how.beta, sure)
    losses = divergence
    slope = slope.mul_((1 - share) / how.temperature) if share or how.temperature != 1.0 else slope
    if share and label is not None:
        losses = (1 - share) * divergence - share * label
        slope = _plus(own_chances.mul_(share), slope)
        slope.scatter_add_(1, ids[:, None], slope.new_full((len(ids), 1), -share))
    if how.max_teacher_entropy is not None:
        heeded = (entropy <= how.max_teacher_entropy).to(losses.dtype)
        losses, slope = losses * heeded, slope.mul_(heeded[:, None])
    return Taught((divergence, entropy, *columns) if detail else (divergence,), losses, slope)


def _plus(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Of `whole`, (tokens, vocabulary), with what is known of its first columns added in place."""
    whole[:, : part.shape[1]] += part
    return whole


def diverge(
    student: torch.Tensor, chances: torch.Tensor, teacher: torch.Tensor, beta: float, sure: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Divergence, the teacher's entropy (0 unless `sure`), and d divergence / d logit of the student.

    Args:
        student: Log-probabilities, (tokens, outcomes); overwritten, as those of the teacher are.
        chances: Their probabilities, which are kept.
        teacher: Log-probabilities.
    """
    wanted = sure or beta < 1.0
    given = teacher.exp() if wanted else teacher
    entropy = -vecdot(given, teacher) if sure else teacher.new_zeros(len(teacher))
    if beta == 0.0:
        # From differences, which are exact where the two are nearly equal.
        return vecdot(given, teacher.sub_(student)), entropy, torch.sub(chances, given, out=given)
    if beta == 1.0:
        divergence = own = vecdot(chances, student.sub_(teacher))
    else:
        # Where both underflow, the logarithm must stay a number: times 0, it does not matter which.
        middle = torch.lerp(chances, given, beta).clamp_(min=torch.finfo(chances.dtype).tiny).log_()
        own = vecdot(chances, student.sub_(middle))
        divergence = beta * vecdot(given, teacher.sub_(middle)) + (1 - beta) * own
    slope = student.sub_(own[:, None]).mul_(chances)
    return divergence, entropy, slope if beta == 1.0 else slope.mul_(1 - beta)


def diverge_at_top(
    student: torch.Tensor, chances: torch.Tensor, teacher: TopTargets, beta: float, sure: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same where only some tokens are known, with all others as one outcome: entropies are those of outcomes."""
    present = teacher.ids >= 0
    at = teacher.ids.clamp(min=0)
    tiny = torch.finfo(student.dtype).tiny
    # Exactly 0 where a token is known, so that the rest is that of the others however small it is.
    rest = chances.scatter_add(1, at, -chances.gather(1, at).mul(present))
    own = rest.sum(dim=1, keepdim=True).clamp_(min=tiny)
    known = teacher.log_probs.to(student.dtype).masked_fill(~present, FLOOR)
    # What a sum of probabilities leaves of 1 is known no better than to float32's precision.
    left = (1 - known.exp().sum(dim=1, keepdim=True)).clamp_(min=torch.finfo(torch.float32).eps)
    left = left.masked_fill(present.sum(dim=1, keepdim=True) >= student.shape[1], tiny)
    outcomes = torch.cat([student.gather(1, at).masked_fill(~present, FLOOR), own.log()], dim=1)
    divergence, entropy, slope = diverge(outcomes, outcomes.exp(), torch.cat([known, left.log()], dim=1), beta, sure)
    # The gradient of the last outcome is shared out as its probability is.
    spread = rest.mul_(slope[:, -1:] / own)
    return divergence, entropy, spread.scatter_add_(1, at, slope[:, :-1].mul(present))
