"""What teachers say of tokens, over as many tokens of the vocabulary as both sides know, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hftune.models.kernels.chunked_heads import LogitShape
from hftune.models.kernels.divergences import Divergence, Lesson, MixedTeachers, TeacherStates, TopTargets

LOG = math.log


def top(ids: list[list[int]], chances: list[list[float]], vocabulary: int | None = None) -> TopTargets:
    return TopTargets(torch.tensor(ids), torch.tensor(chances).log(), vocabulary)


def said(targets: TopTargets) -> tuple[list[list[bool]], list[list[float]]]:
    """Which tokens are known, and their probabilities; 0 for others."""
    known = targets.ids >= 0
    return known.tolist(), (targets.log_probs.exp() * known).tolist()


@pytest.mark.parametrize(("vocabulary", "widest"), [(None, 4), (4, 9), (9, 4), (4, 4)])
def test_tokens_beyond_a_vocabulary_are_left_out(vocabulary: int | None, widest: int) -> None:
    """What the others say is for the rest: 0.1 and 0.3 of what 0.5, at 4, leaves. The second knows two in all."""
    given = top([[3, 4, 0], [0, -1, 2]], [[0.1, 0.5, 0.3], [0.6, 0.7, 0.2]], vocabulary)
    found = given.within(widest)
    known, chances = said(found)
    assert known == [[True, False, True], [True, False, True]] and found.vocabulary == 4
    assert chances[0] == pytest.approx([0.2, 0.0, 0.6]) and chances[1] == pytest.approx([0.6, 0.0, 0.2])
    with given.opened(widest, 1.0) as within:
        assert said(within(slice(1, 2)))[1] == [pytest.approx([0.6, 0.0, 0.2])]


def test_a_teacher_of_which_nothing_is_left_is_no_infinity() -> None:
    found = top([[7, 1]], [[1.0, 1e-9]]).within(4)
    assert found.ids.tolist()[0][1] == 1 and found.log_probs[0, 1].isfinite()
    assert found.log_probs[0, 1].exp() <= 1


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_teacher_as_wide_as_is_asked_for(plain: bool, bias: bool) -> None:
    head = torch.nn.Linear(2, 3, bias=bias)
    torch.nn.init.constant_(head.weight, 0.0)
    if bias:
        head.bias.data = torch.tensor([LOG(1.0), LOG(2.0), LOG(5.0)])
    teacher = TeacherStates(torch.zeros(4, 2), head if plain else torch.nn.Sequential(head), LogitShape())
    assert teacher.heads == (teacher.head,) and teacher.logits(slice(1, 3)).shape == (2, 3)
    for widest, chances in ((2, [1 / 3, 2 / 3]), (3, [1 / 8, 2 / 8, 5 / 8]), (9, [1 / 8, 2 / 8, 5 / 8])):
        with teacher.opened(widest, 1.0) as log_probs_of:
            found = log_probs_of(slice(0, 1)).exp()
            assert found[0].tolist() == pytest.approx(chances if bias else [1 / len(chances)] * len(chances))
            assert len(log_probs_of(slice(2, 4))) == 2


def test_logits_that_are_minus_infinity() -> None:
    """As heads give them that are more than a projection."""
    teacher = TeacherStates(torch.tensor([[-torch.inf, 0.0, 0.0]]), torch.nn.Identity(), LogitShape())
    with teacher.opened(3, 1.0) as log_probs_of:
        found = log_probs_of(slice(None))
    assert found.isfinite().all() and found.exp().tolist()[0] == pytest.approx([0.0, 0.5, 0.5])


def test_rows_of_the_head_that_no_token_has() -> None:
    """Nothing is learnt of them, however likely they are: the shares are those among tokens."""
    teacher = TeacherStates(torch.tensor([[1.0, 3.0, 96.0]]).log(), torch.nn.Identity(), LogitShape(), vocabulary=2)
    for widest in (2, 3):
        with teacher.opened(widest, 1.0) as log_probs_of:
            assert log_probs_of(slice(None)).exp().tolist()[0] == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_several_teachers_by_hand(temperature: float) -> None:
    """0.25 * (1/4, 3/4) + 0.75 * (4/5, 1/5): the first knows two tokens alone. Roots of the odds at temperature 2."""
    rows = [[1.0, 9.0], [16.0, 1.0, 83.0]] if temperature == 2.0 else [[1.0, 3.0], [4.0, 1.0, 5.0]]
    each = [TeacherStates(torch.tensor([row, row]).log(), torch.nn.Identity(), LogitShape()) for row in rows]
    for order, weights in ((each, [0.25, 0.75]), (each[::-1], [0.75, 0.25])):
        both = MixedTeachers(order, weights)
        assert both.heads == tuple(one.head for one in order)
        with both.opened(9, temperature) as log_probs_of:
            assert log_probs_of(slice(1, 2)).exp().tolist() == [pytest.approx([0.6625, 0.3375])]
        with both.part(slice(0, 1)).opened(1, temperature) as log_probs_of:
            assert log_probs_of(slice(None)).tolist() == [[0.0]]


def test_where_no_teacher_has_a_chance_is_a_number() -> None:
    far = torch.tensor([[0.0, -500.0]])
    both = MixedTeachers([TeacherStates(far, torch.nn.Identity(), LogitShape())] * 2, [0.5, 0.5])
    with both.opened(2, 1.0) as log_probs_of:
        assert log_probs_of(slice(None)).isfinite().all()


def test_one_token_is_made_up() -> None:
    states = TeacherStates(torch.ones(0, 2), torch.nn.Identity(), LogitShape())
    assert Lesson(states, Divergence(0.0)).made_up().targets.hidden.tolist() == [[0.0, 0.0]]  # type: ignore[attr-defined]
    both = MixedTeachers([states, states], [0.5, 0.5]).made_up()
    assert [len(one.hidden) for one in both.teachers] == [1, 1]
    nothing = top([[3, 4]], [[0.5, 0.5]]).made_up()
    assert len(nothing.ids) == len(nothing.log_probs) == 1 and said(nothing) == ([[False]], [[0.0]])
