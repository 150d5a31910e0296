"""Divergences of a student from its teachers over some tokens' vocabulary, and the loss that minimises them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.linalg import vecdot
from torch.nn.functional import linear

from hftune.distributed import zero
from hftune.models.kernels.chunked_heads import Columns, LogitShape, in_float32, is_plain, product_dtype, through_head

FLOOR = -1e4
"""Of logits of a head that is more than a projection, which may be -inf: 0 * inf would be NaN."""

LogProbsOf = Callable[[slice], torch.Tensor]
"""Some tokens' log-probabilities over the vocabulary, (tokens, vocabulary), float32; the caller may overwrite them."""


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
        max_teacher_entropy: Nats, of the teacher at `temperature`; a token of which it is less sure has weight 0.
    """

    beta: float
    temperature: float = 1.0
    hard_label_share: float = 0.0
    max_teacher_entropy: float | None = None


@dataclass(frozen=True)
class TeacherStates:
    """A teacher's last hidden states, and how its logits come of them.

    Args:
        hidden: (tokens, size) of the teacher.
        head: Its projection; `torch.nn.Identity` where `hidden` are logits.
        shape: What it does to logits.
        vocabulary: Rows of the head that tokens have; None: all of them.
    """

    hidden: torch.Tensor
    head: torch.nn.Module
    shape: LogitShape
    vocabulary: int | None = None

    @property
    def heads(self) -> tuple[torch.nn.Module, ...]:
        """Modules whose parameters are gathered (ZeRO-3) where `opened` is used."""
        return (self.head,)

    @torch.no_grad()
    def logits(self, rows: slice) -> torch.Tensor:
        """(tokens, vocabulary) of some tokens, float32, temperature 1."""
        with self._logits_opened(None) as logits_of:
            return logits_of(rows)

    @contextmanager
    def opened(self, widest: int, temperature: float) -> Iterator[LogProbsOf]:
        """Give log-probabilities in the block, over the first `widest` tokens of the vocabulary at most."""
        with self._logits_opened(min(widest, self.vocabulary or widest)) as logits_of:
            yield lambda rows: tempered(logits_of(rows), temperature)

    @contextmanager
    def _logits_opened(self, widest: int | None) -> Iterator[LogProbsOf]:
        if not is_plain(self.head):
            # A module of its own, which ZeRO-3 gathers as it is called, under autocast as its states were computed.
            device = self.hidden.device.type
            enabled = torch.is_autocast_enabled(device)

            def by_module(rows: slice) -> torch.Tensor:
                with torch.autocast(device, enabled=enabled):
                    return self.shape(self.head(self.hidden[rows]))[:, :widest].clamp(min=FLOOR)

            yield by_module
            return
        head: Any = self.head
        with zero.gathered(head.parameters()):
            dtype = product_dtype(head.weight)
            weight = head.weight.detach()[:widest].to(dtype)
            bias = None if head.bias is None else head.bias.detach()[:widest].to(dtype)

            def logits_of(rows: slice) -> torch.Tensor:
                with in_float32(weight.device):
                    return self.shape(linear(self.hidden[rows].to(dtype), weight, bias))

            yield logits_of

    def part(self, rows: slice) -> TeacherStates:
        """Of some tokens."""
        return replace(self, hidden=self.hidden[rows])

    def made_up(self) -> TeacherStates:
        """Of one token that a batch without labels projects all the same."""
        return replace(self, hidden=self.hidden.new_zeros(1, self.hidden.shape[1]))


@dataclass(frozen=True)
class MixedTeachers:
    """Several teachers, as the one distribution that is the mean of theirs.

    Args:
        teachers: Each of the same tokens.
        weights: Theirs; the sum is 1.
    """

    teachers: Sequence[TeacherStates]
    weights: Sequence[float]

    @property
    def heads(self) -> tuple[torch.nn.Module, ...]:
        """As `TeacherStates.heads`."""
        return tuple(each.head for each in self.teachers)

    @contextmanager
    def opened(self, widest: int, temperature: float) -> Iterator[LogProbsOf]:
        """As `TeacherStates.opened`; over the tokens that all of them know."""
        with ExitStack() as stack:
            # At temperature 1 and over each one's own width: normalised again below, over what they share.
            each_of = [stack.enter_context(each.opened(widest, 1.0)) for each in self.teachers]

            def mixed(rows: slice) -> torch.Tensor:
                each = [log_probs_of(rows) for log_probs_of in each_of]
                width = min(one.shape[1] for one in each)
                total = torch.zeros_like(each[0][:, :width])
                for one, weight in zip(each, self.weights, strict=True):
                    total.add_(tempered(one[:, :width], temperature).exp_(), alpha=weight)
                return total.clamp_(min=torch.finfo(total.dtype).tiny).log_()

            yield mixed

    def part(self, rows: slice) -> MixedTeachers:
        """Of some tokens."""
        return replace(self, teachers=[each.part(rows) for each in self.teachers])

    def made_up(self) -> MixedTeachers:
        """As `TeacherStates.made_up`."""
        return replace(self, teachers=[each.made_up() for each in self.teachers])


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

    @property
    def heads(self) -> tuple[torch.nn.Module, ...]:
        """None: nothing is gathered."""
        return ()

    @contextmanager
    def opened(self, widest: int, temperature: float) -> Iterator[Callable[[slice], TopTargets]]:
        """Give `within` in the block."""
        yield lambda rows: self.part(rows).within(widest)

    def within(self, widest: int) -> TopTargets:
        """Over the first `widest` tokens of a vocabulary at most: of others none is here, and the rest sums to 1."""
        width = min(widest, self.vocabulary or widest)
        beyond = self.ids >= width
        lost = self.log_probs.masked_fill(~beyond, -torch.inf).exp().sum(1, keepdim=True).clamp(max=1 - 1e-6)
        return TopTargets(self.ids.masked_fill(beyond, -1), self.log_probs - torch.log1p(-lost), width)

    def part(self, rows: slice) -> TopTargets:
        """Of some tokens."""
        return replace(self, ids=self.ids[rows], log_probs=self.log_probs[rows])

    def made_up(self) -> TopTargets:
        """Of one token of which nothing is known."""
        ids = self.ids.new_full((1, 1), -1)
        return replace(self, ids=ids, log_probs=torch.zeros_like(ids, dtype=torch.float32))


Targets = TeacherStates | MixedTeachers | TopTargets
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


def tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities of logits, or of other log-probabilities, (tokens, vocabulary)."""
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=1)


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
