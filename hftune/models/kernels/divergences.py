"""Divergences of a student from its teacher over some tokens' vocabulary, and the loss that minimises them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch.linalg import vecdot

from hftune.models.kernels.heads import (
    FLOOR,
    Columns,
    LogitShape,
    Measured,
    TeacherStates,
    in_float32,
    tempered,
    through_head,
)


@dataclass(frozen=True)
class Divergence:
    """Of a token: (1 - hard_label_share) * divergence + hard_label_share * -log p_student(label), in nats.

    The label's term is at temperature 1 and over the student's whole vocabulary, as in SFT.

    Args:
        beta: 0 forward KL(teacher || student), 1 reverse KL(student || teacher); between them the generalised
            Jensen-Shannon divergence beta * KL(teacher || m) + (1 - beta) * KL(student || m) with
            m = (1 - beta) * student + beta * teacher, as TRL's DistillationTrainer has it.
        temperature: Of both sides' distributions; the result is not scaled with it.
        hard_label_share: 0 to 1.
    """

    beta: float
    temperature: float = 1.0
    hard_label_share: float = 0.0


@dataclass(frozen=True)
class TopTargets:
    """The most likely tokens of a teacher; all others are one outcome more, "any other token".

    Args:
        ids: (tokens, k), int64; below 0: absent.
        log_probs: (tokens, k), float32, of the whole distribution at the temperature of training.
        vocabulary: Tokens that the teacher knows; None: all that the student does.
    """

    ids: torch.Tensor
    log_probs: torch.Tensor
    vocabulary: int | None = None

    heads: ClassVar[tuple[torch.nn.Module, ...]] = ()

    def at(self, rows: slice, widest: int, temperature: float) -> TopTargets:
        """Of some tokens, `within` so many of the vocabulary; the temperature is the one they have."""
        return replace(self, ids=self.ids[rows], log_probs=self.log_probs[rows]).within(widest)

    def within(self, widest: int) -> TopTargets:
        """Over the first `widest` tokens of a vocabulary at most: of others none is here, and the rest sums to 1."""
        width = min(widest, self.vocabulary or widest)
        beyond = self.ids >= width
        lost = self.log_probs.masked_fill(~beyond, -torch.inf).exp().sum(1, keepdim=True).clamp(max=1 - 1e-6)
        return TopTargets(self.ids.masked_fill(beyond, -1), self.log_probs - torch.log1p(-lost), width)

    def made_up(self) -> TopTargets:
        """Of one token of which nothing is known."""
        ids = self.ids.new_full((1, 1), -1)
        return replace(self, ids=ids, log_probs=torch.zeros_like(ids, dtype=torch.float32))


Targets = TeacherStates | TopTargets
"""What a teacher says of some tokens, however it is known."""


@dataclass(frozen=True)
class Lesson:
    """What is learnt of a batch's labelled tokens.

    Args:
        targets: Of each label, in the order of `answer_ids`.
        divergence: What is minimised.
    """

    targets: Targets
    divergence: Divergence

    def made_up(self) -> Lesson:
        """Of one token that a batch without labels projects all the same."""
        return replace(self, targets=self.targets.made_up())

    def loss(
        self,
        head: torch.nn.Module,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        shape: LogitShape,
        detail: int,
        factors: torch.Tensor,
    ) -> Measured:
        """Sum of factor * what `Divergence` says, a float32 scalar, and `COLUMNS` without a gradient, (tokens,) each.

        Neither side's logits exist for all tokens at any time.

        Args:
            head: The student's.
            hidden: (tokens, size) of the student.
            targets: The labels, (tokens,).
            shape: What the student does to logits.
            factors: (tokens,), float32.
        """
        device = hidden.device.type
        # Where logits become a loss autocast is off; a teacher's are computed as its states were.
        enabled = torch.is_autocast_enabled(device)

        def score(raw: torch.Tensor, rows: slice) -> Columns:
            with torch.autocast(device, enabled=enabled):
                teacher = self.targets.at(rows, raw.shape[1], self.divergence.temperature)
            with in_float32(raw.device):
                # Logits of a head that is more than a projection may be -inf: 0 * inf would be NaN.
                return taught(shape(raw).clamp(min=FLOOR), targets[rows], teacher, self.divergence, detail)

        loss, _, *columns = through_head(head, hidden, score, factors, self.targets.heads)
        return loss, dict(zip(COLUMNS, columns, strict=False))


COLUMNS = ("divergence", "log_probs", "entropy", "is_top1")
"""What is measured of each token: the first alone with detail 0."""


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
        divergence = diverge_at_top(student, teacher, how.beta)
    else:
        divergence = diverge(student, teacher, how.beta)
    label = own.gather(1, ids[:, None]).squeeze(1)
    value = (1 - share) * divergence - share * label if share else divergence
    columns = [divergence.detach()]
    if detail:
        known = own.detach()
        # Of several that are the largest, one is the most likely.
        columns += [label.detach(), -vecdot(known.exp(), known), known.max(dim=1).indices == ids]
    return value, *columns


def diverge(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """Divergence, with a gradient, (tokens,), from log-probabilities (tokens, outcomes).

    Of sums over p log p the gradient of p alone is taken: that of the logarithms adds up to 0, as all p are 1 together.
    """
    given = teacher.exp()
    if beta == 0.0:
        # From differences, which are exact where the two are nearly equal.
        return vecdot(given, teacher - student)
    chances = student.exp()
    if beta == 1.0:
        return vecdot(chances, (student - teacher).detach())
    # Where both underflow, the logarithm must stay a number: times 0, it does not matter which.
    middle = torch.lerp(chances.detach(), given, beta).clamp_(min=torch.finfo(chances.dtype).tiny).log_()
    own = vecdot(chances, student.detach() - middle)
    return beta * vecdot(given, teacher - middle) + (1 - beta) * own


def diverge_at_top(student: torch.Tensor, teacher: TopTargets, beta: float) -> torch.Tensor:
    """The same where only some tokens are known, with all others as one outcome."""
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
