"""Divergences and their gradients, in float64 beside autograd over the formulas as they are written."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hftune.models.kernels.divergences import Divergence, TeacherStates, TopTargets, taught
from hftune.models.kernels.heads import LogitShape

WORDS, TOKENS = 23, 11


class Found:
    """What is minimised of each token, its gradient by the logits, and the columns."""

    def __init__(self, logits: torch.Tensor, *given: Any) -> None:
        logits = logits.detach().requires_grad_()
        self.losses, *self.columns = taught(logits, *given)
        (self.slope,) = torch.autograd.grad(self.losses.sum(), logits)
        self.losses = self.losses.detach()
        assert not any(column.requires_grad for column in self.columns)


def divergence_of(student: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """From log-probabilities (tokens, outcomes), by the definitions."""

    def kl(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (one.exp() * (one - other)).sum(-1)

    if beta in (0.0, 1.0):
        return kl(student, teacher) if beta else kl(teacher, student)
    middle = ((1 - beta) * student.exp() + beta * teacher.exp()).log()
    return beta * kl(teacher, middle) + (1 - beta) * kl(student, middle)


def expected(logits: torch.Tensor, ids: torch.Tensor, teacher: torch.Tensor, how: Divergence) -> torch.Tensor:
    """(tokens,) losses over full logits; the teacher's may be of another width."""
    width = min(logits.shape[1], teacher.shape[1])
    student = (logits[:, :width] / how.temperature).log_softmax(-1)
    given = (teacher[:, :width] / how.temperature).log_softmax(-1)
    label = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    share = how.hard_label_share
    return (1 - share) * divergence_of(student, given, how.beta) - share * label


def made(width: int = WORDS, teacher_width: int = WORDS) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(TOKENS, width, generator=generator, dtype=torch.float64)
    teacher = 3 * torch.randn(TOKENS, teacher_width, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(0, width, (TOKENS,), generator=generator), teacher


def check(how: Divergence, detail: int, width: int = WORDS, teacher_width: int = WORDS) -> None:
    logits, ids, teacher = made(width, teacher_width)
    losses = expected(logits, ids, teacher, how)
    (wanted,) = torch.autograd.grad(losses.sum(), logits)
    shared = min(width, teacher_width)
    given = (teacher[:, :shared] / how.temperature).log_softmax(-1)
    found = Found(logits, ids, given.clone(), how, detail)
    torch.testing.assert_close(found.losses, losses, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.slope, wanted, rtol=1e-10, atol=1e-12)
    own, whole = (logits[:, :shared] / how.temperature).log_softmax(-1), logits.log_softmax(-1)
    columns: tuple[Any, ...] = (divergence_of(own, given, how.beta),)
    if detail:
        label = whole.gather(1, ids[:, None])[:, 0]
        columns = (*columns, label, -(whole.exp() * whole).sum(-1), whole.argmax(-1) == ids)
    assert len(found.columns) == len(columns)
    for one, other in zip(found.columns, columns, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize(
    ("temperature", "share", "detail"), [(1.0, 0.0, 0), (2.0, 0.0, 1), (1.0, 0.3, 1), (2.0, 1.0, 0)]
)
def test_value_gradient_and_columns(beta: float, temperature: float, share: float, detail: int) -> None:
    check(Divergence(beta, temperature, share), detail)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("widths", [(WORDS, WORDS - 4), (WORDS - 4, WORDS)])
def test_another_padded_width(beta: float, share: float, widths: tuple[int, int]) -> None:
    check(Divergence(beta, 1.0, share), 1, *widths)
    check(Divergence(beta, 2.0, share), 0, *widths)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_probabilities_that_underflow(beta: float) -> None:
    logits, teacher = torch.tensor([[0.0, -300.0, 2.0, -300.0]]), torch.tensor([[1.0, -300.0, 0.0, -1e4]])
    found = Found(logits, torch.tensor([2]), teacher.log_softmax(-1), Divergence(beta), 1)
    exact = expected(logits.double(), torch.tensor([2]), teacher.double(), Divergence(beta))
    torch.testing.assert_close(found.losses.double(), exact, rtol=1e-5, atol=1e-6)
    assert found.slope.isfinite().all()


def outcomes(log_probs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(tokens, k + 1): the known tokens and any other; absent ones have no probability."""
    present = ids >= 0
    known = log_probs.gather(1, ids.clamp(min=0)).masked_fill(~present, -700.0)
    other = torch.ones_like(log_probs, dtype=torch.bool).scatter(1, ids.clamp(min=0), value=False)
    # `scatter` has taken away token 0 where an id is absent
    other[:, 0] = ~(ids == 0).any(-1)
    rest = log_probs.masked_fill(~other, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([known, rest], dim=-1)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_top_tokens_and_any_other(beta: float, temperature: float, share: float) -> None:
    logits, ids, teacher = made()
    given = (teacher / temperature).log_softmax(-1)
    top = given.topk(5, dim=-1)
    known, values = top.indices.clone(), top.values.clone()
    known[1, 3:] = -1  # two of a token are absent, and all of another
    known[2] = -1
    values[known < 0] = torch.nan
    student = (logits / temperature).log_softmax(-1)
    label = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    diverged = divergence_of(outcomes(student, known), outcomes(given, known), beta)
    losses = (1 - share) * diverged - share * label
    (wanted,) = torch.autograd.grad(losses.sum(), logits)
    how = Divergence(beta, temperature, share)
    found = Found(logits.detach().clone(), ids, TopTargets(known, values).within(WORDS), how, 1)
    torch.testing.assert_close(found.columns[0], diverged, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.losses, losses, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found.slope, wanted, rtol=1e-6, atol=1e-9)


def test_a_rest_too_small_for_the_sum_of_the_known_is_no_infinite_divergence() -> None:
    given = torch.tensor([[30.0, 0.0, 0.0, 0.0]]).log_softmax(-1)
    top = given.topk(2, dim=-1)
    for beta in (0.0, 0.5, 1.0):
        logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
        found = Found(logits, torch.tensor([0]), TopTargets(top.indices, top.values).within(4), Divergence(beta), 1)
        assert found.losses.isfinite().all() and found.slope.isfinite().all()
        assert found.losses.item() < 20


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
    assert said(given.at(slice(1, 2), widest, 1.0))[1] == [pytest.approx([0.6, 0.0, 0.2])]


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
        found = teacher.at(slice(0, 1), widest, 1.0).exp()
        assert found[0].tolist() == pytest.approx(chances if bias else [1 / len(chances)] * len(chances))
        assert len(teacher.at(slice(2, 4), widest, 1.0)) == 2


def test_logits_that_are_minus_infinity() -> None:
    """As heads give them that are more than a projection."""
    teacher = TeacherStates(torch.tensor([[-torch.inf, 0.0, 0.0]]), torch.nn.Identity(), LogitShape())
    found = teacher.at(slice(None), 3, 1.0)
    assert found.isfinite().all() and found.exp().tolist()[0] == pytest.approx([0.0, 0.5, 0.5])


def test_rows_of_the_head_that_no_token_has() -> None:
    """Nothing is learnt of them, however likely they are: the shares are those among tokens."""
    teacher = TeacherStates(torch.tensor([[1.0, 3.0, 96.0]]).log(), torch.nn.Identity(), LogitShape(), vocabulary=2)
    for widest in (2, 3):
        assert teacher.at(slice(None), widest, 1.0).exp().tolist()[0] == pytest.approx([0.25, 0.75])
