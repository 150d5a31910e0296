"""What a teacher says of the tokens that a student is trained on, and what is minimised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Divergence:
    """What is minimised for each trained token.

    Args:
        beta: 0 the forward KL, 1 the reverse KL, between them the generalised Jensen-Shannon divergence.
        temperature: Of both distributions.
        hard_label_share: Of the plain loss in the whole.
        max_teacher_entropy: Nats; tokens of which the teacher is less sure have weight 0.
    """

    beta: float = 1.0
    temperature: float = 1.0
    hard_label_share: float = 0.0
    max_teacher_entropy: float | None = None


class TeacherStates:
    """A teacher's hidden states of the trained tokens, and its head."""


class MixedTeachers:
    """Several teachers, whose probabilities are mixed."""

    def __init__(self, teachers: list[TeacherStates], shares: list[float]) -> None:
        self.teachers, self.shares = teachers, shares


@dataclass
class Lesson:
    """Targets of the trained tokens, and the divergence from them."""

    targets: Any
    divergence: Divergence
