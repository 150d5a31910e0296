"""What a teacher with another tokenizer says, at the tokens of the student where groups of both begin together.

At a token that both write alike, the two distributions are compared over the tokens that both vocabularies have, all
others being one outcome. Elsewhere, where one side needs more tokens, only sorted probabilities can be
(arXiv:2402.12030).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad

from hftune.models.kernels.lessons import TeacherStates

_ALL = 2**31
"""Of a teacher's vocabulary: how wide the student's is does not matter here."""


@dataclass(frozen=True)
class Pairing:
    """Two vocabularies: tokens that both have, and what a difference weighs.

    Args:
        student_ids: (shared,), int64, tokens that write the same bytes as
        teacher_ids: these of the teacher, (shared,).
        others: Whether both have tokens of text besides, so that "another token" is an outcome.
        sizes: Tokens of student and teacher; a head may be padded beyond them.
        weights: Of tokens that both write alike, and of those where sorted probabilities are compared.
    """

    student_ids: torch.Tensor
    teacher_ids: torch.Tensor
    others: bool
    sizes: tuple[int, int]
    weights: tuple[float, float]

    def to(self, device: torch.device) -> Pairing:
        """On a device."""
        return replace(self, student_ids=self.student_ids.to(device), teacher_ids=self.teacher_ids.to(device))


@dataclass(frozen=True)
class AlignedTeacher:
    """Of a chunk of the student's tokens.

    Args:
        log_probs: The teacher's, (groups, its vocabulary), of the tokens at which a group begins.
        begins: (tokens,), bool: at which tokens that is.
        alike: (groups,), bool: both sides write this token alike.
        vocabulary: None: the student's is compared as wide as it is.
    """

    log_probs: torch.Tensor
    begins: torch.Tensor
    alike: torch.Tensor
    pairing: Pairing
    vocabulary: None = None


@dataclass(frozen=True)
class AlignedTargets:
    """Of all labelled tokens of a batch.

    Args:
        states: Of the groups, in the order of the student's tokens.
        group: (tokens,), int64, the group that begins at each token; -1 for none.
        alike: (groups,), bool.
    """

    states: TeacherStates
    group: torch.Tensor
    alike: torch.Tensor
    pairing: Pairing

    @property
    def heads(self) -> tuple[torch.nn.Module, ...]:
        """As `TeacherStates.heads`."""
        return self.states.heads

    @contextmanager
    def opened(self, widest: int, temperature: float) -> Iterator[Callable[[slice], AlignedTeacher]]:
        """Give what is said of some tokens in the block."""
        with self.states.opened(_ALL, temperature) as log_probs_of:

            def said(rows: slice) -> AlignedTeacher:
                group = self.group[rows]
                found = group[group >= 0]
                # Groups stand in the order of tokens: those of a chunk are next to each other.
                place = slice(int(found[0]), int(found[-1]) + 1) if len(found) else slice(0, 0)
                return AlignedTeacher(log_probs_of(place), group >= 0, self.alike[place], self.pairing)

            yield said

    def part(self, rows: slice) -> AlignedTargets:
        """Of some tokens; all groups are kept."""
        return replace(self, group=self.group[rows])

    def made_up(self) -> AlignedTargets:
        """Of one token at which no group begins, so that none is read."""
        return replace(self, group=self.group.new_full((1,), -1))


def outcomes(log_probs: torch.Tensor, ids: torch.Tensor, size: int, *, others: bool) -> torch.Tensor:
    """log p of the shared tokens and, with `others`, of "another token": (rows, shared [+ 1]), sums to 1.

    p(i) = exp(x_i) / Z for each of `ids`, p(another) = sum over the rest of exp(x_j) / Z; columns from `size` on, which
    are no tokens, do not count. Without `others`, Z is the sum over `ids` alone.

    Args:
        log_probs: (rows, vocabulary), or logits.
    """
    shared = log_probs.index_select(1, ids)
    if others:
        rest = log_probs[:, :size].index_fill(1, ids, -torch.inf).logsumexp(dim=1, keepdim=True)
        shared = torch.cat([shared, rest], dim=1)
    return shared.log_softmax(dim=1)


def generalised_divergence(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """As `Divergence.beta` has it, from log-probabilities (rows, outcomes): (rows,), nats."""
    if beta == 0.0:
        return (teacher.exp() * (teacher - student)).sum(dim=1)
    if beta == 1.0:
        return (student.exp() * (student - teacher)).sum(dim=1)
    tiny = torch.finfo(student.dtype).tiny
    middle = torch.lerp(student.exp(), teacher.exp(), beta).clamp(min=tiny).log()
    own, theirs = student.exp() * (student - middle), teacher.exp() * (teacher - middle)
    return (beta * theirs + (1 - beta) * own).sum(dim=1)


def sorted_distance(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Sum of |p_i - q_i| over the i-th most likely tokens of each, 0 to 2: (rows,), from log-probabilities.

    The universal logit distillation loss (arXiv:2402.12030, eq. 2); the smaller vocabulary is filled up with zeros.
    """
    own, theirs = (each.softmax(dim=1).sort(descending=True).values for each in (student, teacher))
    width = max(own.shape[1], theirs.shape[1])
    own, theirs = (pad(each, (0, width - each.shape[1])) for each in (own, theirs))
    return (own - theirs).abs().sum(dim=1)


def aligned_losses(student: torch.Tensor, teacher: AlignedTeacher, beta: float) -> torch.Tensor:
    """Of each token, (tokens,): 0 where no group begins; else, weighted, the divergence or the sorted distance.

    Args:
        student: Log-probabilities or logits over the student's vocabulary, (tokens, vocabulary).
    """
    pairing, alike = teacher.pairing, teacher.alike
    own, theirs = student[teacher.begins], teacher.log_probs
    divergence = generalised_divergence(
        outcomes(own[alike], pairing.student_ids, pairing.sizes[0], others=pairing.others),
        outcomes(theirs[alike], pairing.teacher_ids, pairing.sizes[1], others=pairing.others),
        beta,
    )
    distance = sorted_distance(own[~alike][:, : pairing.sizes[0]], theirs[~alike][:, : pairing.sizes[1]])
    losses = student.new_zeros(len(alike))
    losses = losses.masked_scatter(alike, pairing.weights[0] * divergence)
    losses = losses.masked_scatter(~alike, pairing.weights[1] * distance)
    return student.new_zeros(len(student)).masked_scatter(teacher.begins, losses)


def diverge_aligned(
    student: torch.Tensor, teacher: AlignedTeacher, beta: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`aligned_losses`, the teacher's entropy (0 where no group begins), and d loss / d logit of the student.

    Args:
        student: Log-probabilities, (tokens, vocabulary); only differences count, so their gradient is that of logits.
    """
    with torch.enable_grad():
        leaf = student.detach().requires_grad_()
        losses = aligned_losses(leaf, teacher, beta)
        (slope,) = torch.autograd.grad(losses.sum(), leaf)
    sure = -(teacher.log_probs.exp() * teacher.log_probs).sum(dim=1)
    return losses.detach(), losses.new_zeros(len(losses)).masked_scatter(teacher.begins, sure), slope
