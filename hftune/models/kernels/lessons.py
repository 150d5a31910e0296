"""What a teacher says of the labelled tokens of a batch, and which divergence from it is minimised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn.functional import linear

from hftune.distributed import zero
from hftune.models.kernels.answer_projection import LogitShape
from hftune.models.kernels.chunked_heads import in_float32, is_plain, product_dtype

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


class Targets(Protocol):
    """What a teacher says of some tokens, however it is known: the classes above."""

    @property
    def heads(self) -> tuple[torch.nn.Module, ...]:
        """As `TeacherStates.heads`."""
        ...

    def opened(self, widest: int, temperature: float) -> AbstractContextManager[Callable[[slice], Any]]:
        """As `TeacherStates.opened`."""
        ...

    def part(self, rows: slice) -> Targets:
        """Of some tokens."""
        ...

    def made_up(self) -> Targets:
        """As `TeacherStates.made_up`."""
        ...


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
