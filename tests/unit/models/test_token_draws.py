"""Tokens are drawn as `torch.multinomial` draws them, whenever their random numbers are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from transformers import GenerationConfig

from hftune.models import decoding
from hftune.models.decoding import Draws, LogProbs, head_in_pieces, random_state


@pytest.mark.parametrize("ahead", [False, True])
def test_draws_what_multinomial_draws(ahead: bool) -> None:
    """Four tokens for five answers, of which two leave after the second."""
    scores = torch.randn(4, 5, 300, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    expected = [torch.multinomial(step.softmax(dim=-1), num_samples=1).squeeze(1) for step in scores]
    after = torch.get_rng_state()
    torch.manual_seed(2)
    with ThreadPoolExecutor(1) as pool:
        draws = Draws(5, pool if ahead else None)
        for number, step in enumerate(scores):
            here = torch.arange(5) if number < 2 else torch.tensor([0, 2, 3])
            assert torch.equal(draws.pick(step[here], here), expected[number][here])
            if number < 3:
                draws.begin()
    # None too many were drawn.
    assert torch.equal(torch.get_rng_state(), after)


def test_numbers_are_drawn_in_the_thread_that_was_given() -> None:
    """Not the first ones: how many there are is not known yet."""
    asked = []

    class Pool(ThreadPoolExecutor):
        def submit(self, *given):  # type: ignore[no-untyped-def, override]
            asked.append(given)
            return super().submit(*given)

    with Pool(1) as pool:
        draws = Draws(2, pool)
        draws.begin()
        assert not asked
        draws.pick(torch.zeros(2, 7), torch.arange(2))
        draws.begin()
        assert len(asked) == 1


def test_a_logit_that_is_no_number_is_an_error_and_no_token() -> None:
    scores = torch.zeros(2, 5)
    scores[1, 3] = float("nan")
    with pytest.raises(RuntimeError, match="nan"):
        Draws(2, None).pick(scores, torch.arange(2))


def test_log_probabilities_by_hand() -> None:
    says = LogProbs(GenerationConfig(temperature=0.5), 3)
    says.add(torch.tensor([[0.0, 1.0]] * 3), torch.tensor([0, 1, 1]), torch.arange(3))
    says.add(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), torch.tensor([1]))
    high, low = torch.tensor([2.0, 0.0]).log_softmax(dim=0)
    other = torch.tensor([4.0, 0.0]).log_softmax(dim=0)[0]
    assert torch.allclose(says.together(), torch.stack([low, 0 * low, high, other, high, 0 * low]).view(3, 2))


@pytest.mark.parametrize("bias", [False, True])
def test_a_head_in_pieces_gives_the_same(bias: bool) -> None:
    torch.manual_seed(0)
    head, states = nn.Linear(8, 2 * decoding.PIECE + 5, bias=bias), torch.randn(3, 1, 8)
    expected = head(states)
    with head_in_pieces(head):
        assert "forward" in vars(head)
        assert torch.allclose(head(states), expected, atol=1e-6)
    assert "forward" not in vars(head)


def test_a_head_of_another_kind_is_left_alone() -> None:
    head = nn.Sequential(nn.Linear(2, 3))
    with head_in_pieces(head), head_in_pieces(None):
        assert "forward" not in vars(head)


def test_dropout_shows_in_the_random_state() -> None:
    before = random_state(torch.device("cpu"))
    nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2))
    assert torch.equal(before, random_state(torch.device("cpu")))
    nn.functional.dropout(torch.ones(2, 2))
    assert not torch.equal(before, random_state(torch.device("cpu")))
