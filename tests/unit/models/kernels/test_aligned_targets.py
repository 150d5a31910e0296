"""The loss of a teacher with another vocabulary against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hftune.models.kernels import chunked_heads
from hftune.models.kernels.aligned_targets import (
    AlignedTargets,
    AlignedTeacher,
    Pairing,
    aligned_losses,
    diverge_aligned,
    generalised_divergence,
    outcomes,
    sorted_distance,
)
from hftune.models.kernels.answer_projection import LogitShape
from hftune.models.kernels.lessons import Divergence, Lesson, TeacherStates
from hftune.models.kernels.taught_projection import taught_loss

ids = torch.tensor


def _logs(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_outcomes_by_hand() -> None:
    # The last column is padding; of the rest, 0.1 + 0.2 are other tokens.
    found = outcomes(_logs([0.4, 0.1, 0.2, 0.1, 0.2]), ids([0, 3]), 4, others=True).exp()
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.125, 0.375]], dtype=torch.float64))
    alone = outcomes(_logs([0.4, 0.1, 0.2, 0.1, 0.2]), ids([0, 3]), 4, others=False).exp()
    torch.testing.assert_close(alone, torch.tensor([[0.8, 0.2]], dtype=torch.float64))


def test_sorted_distance_by_hand() -> None:
    # 0.6, 0.4 against 0.5, 0.3, 0.2
    found = sorted_distance(_logs([0.4, 0.6]), _logs([0.2, 0.5, 0.3]))
    assert found.item() == pytest.approx(0.1 + 0.1 + 0.2)


PAIRING = Pairing(ids([0, 2]), ids([1, 0]), True, (3, 3), (0.25, 2.0))


def test_losses_by_hand() -> None:
    student = _logs([0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2])
    theirs = _logs([0.3, 0.4, 0.3], [0.7, 0.2, 0.1])
    teacher = AlignedTeacher(theirs, ids([True, False, True]), ids([True, False]), PAIRING)
    forward = 0.4 * math.log(0.4 / 0.2) + 0.3 * math.log(0.3 / 0.5) + 0.3 * math.log(0.3 / 0.3)
    losses = aligned_losses(student, teacher, 0.0)
    assert losses.tolist() == pytest.approx([0.25 * forward, 0.0, 2.0 * (0.1 + 0.0 + 0.1)])
    reverse = 0.2 * math.log(0.2 / 0.4) + 0.5 * math.log(0.5 / 0.3)
    assert aligned_losses(student, teacher, 1.0)[0].item() == pytest.approx(0.25 * reverse)
    found, sure, slope = diverge_aligned(student, teacher, 0.0)
    assert found.tolist() == pytest.approx(losses.tolist())
    assert sure[1] == 0 and sure[0].item() == pytest.approx(-sum(p * math.log(p) for p in (0.3, 0.4, 0.3)))
    leaf = student.clone().requires_grad_()
    aligned_losses(leaf.log_softmax(1), teacher, 0.0).sum().backward()
    torch.testing.assert_close(slope, leaf.grad)


def test_columns_that_are_no_tokens_say_nothing() -> None:
    """Of heads that are padded: the student has 3 tokens of 4 columns, the teacher 4 of 5."""
    pairing = Pairing(ids([0, 2]), ids([1, 0]), True, (3, 4), (0.25, 2.0))
    student = _logs([0.2, 0.3, 0.4, 0.1], [0.3, 0.15, 0.15, 0.4])
    theirs = _logs([0.3, 0.4, 0.1, 0.1, 0.1], [0.4, 0.1, 0.1, 0.2, 0.2])
    teacher = AlignedTeacher(theirs, ids([True, True]), ids([True, False]), pairing)
    # 2/9, 4/9 and 3/9 against 4/9, 3/9 and 2/9; sorted 1/2, 1/4, 1/4, 0 against 4/8, 2/8, 1/8, 1/8.
    forward = 4 / 9 * math.log(2) + 3 / 9 * math.log(3 / 4) + 2 / 9 * math.log(2 / 3)
    assert aligned_losses(student, teacher, 0.0).tolist() == pytest.approx([0.25 * forward, 2.0 * 0.25])


def test_probabilities_that_underflow() -> None:
    """Where both have no chance at all, a middle has none either; the divergence stays a number."""
    both = torch.tensor([[0.0, -500.0]])
    assert generalised_divergence(both, both, 0.5).tolist() == [0.0]


def test_all_of_a_teacher_s_vocabulary_is_read() -> None:
    states = TeacherStates(torch.zeros(2, 100), torch.nn.Identity(), LogitShape())
    targets = AlignedTargets(states, ids([-1, 0, -1, 1]), ids([True, False]), PAIRING)
    with targets.opened(3, 1.0) as said:
        found = said(slice(2, 4))
    torch.testing.assert_close(found.log_probs, torch.full((1, 100), -math.log(100)))
    assert found.begins.tolist() == [False, True] and found.alike.tolist() == [False]


@given(st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([1.0, 2.0]), st.sampled_from([0.0, 0.4]))
def test_one_vocabulary_on_both_sides_is_the_plain_divergence(beta: float, temperature: float, hard: float) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(6, 4)
    states = TeacherStates(torch.randn(6, 4), torch.nn.Linear(4, 7), LogitShape())
    every = torch.arange(7)
    pairing = Pairing(every, every, False, (7, 7), (1.0, 0.0))
    aligned = AlignedTargets(states, torch.arange(6), torch.ones(6, dtype=torch.bool), pairing)
    head, labels, factors = torch.nn.Linear(4, 7), torch.randint(7, (6,)), torch.rand(6)
    found = []
    for targets in (states, aligned):
        read = hidden.clone().requires_grad_()
        lesson = Lesson(targets, Divergence(beta, temperature, hard))
        head.zero_grad()
        loss, _ = taught_loss(head, read, labels, LogitShape(), 1, factors, lesson)
        loss.backward()
        found.append([loss.detach(), read.grad, head.weight.grad.clone(), head.bias.grad.clone()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(5, 4), (plain := torch.nn.Linear(4, 3))
    states = TeacherStates(torch.randn(3, 4), torch.nn.Linear(4, 3), LogitShape())
    targets = AlignedTargets(states, ids([0, -1, 1, -1, 2]), ids([True, False, True]), PAIRING)
    lesson = Lesson(targets, Divergence(0.5))

    def run() -> torch.Tensor:
        return taught_loss(head, hidden, ids([0, 1, 2, 0, 1]), LogitShape(), 0, torch.ones(5), lesson)[0]

    whole = run()
    cut = [slice(start, start + 1) for start in range(5)]
    monkeypatch.setattr("hftune.models.kernels.taught_projection.chunk_slices", lambda *_: cut)
    torch.testing.assert_close(run(), whole)
    assert whole.item() > 0
    # As a head that is called as a module does: labels of its tokens, and all groups.
    head = type("Other", (torch.nn.Linear,), {})(4, 3)
    head.load_state_dict(plain.state_dict())
    monkeypatch.setitem(chunked_heads.CHUNK_BYTES, "cpu", 4 * 3 * 2)
    torch.testing.assert_close(run(), whole)


def test_a_batch_without_labels() -> None:
    states = TeacherStates(torch.zeros(0, 4), torch.nn.Linear(4, 3), LogitShape())
    made = AlignedTargets(states, ids([], dtype=torch.int64), ids([], dtype=torch.bool), PAIRING).made_up()
    lesson = Lesson(made, Divergence(0.0))
    loss, _ = taught_loss(torch.nn.Linear(4, 3), torch.ones(1, 4), ids([0]), LogitShape(), 1, torch.zeros(1), lesson)
    assert loss.item() == 0
