"""Comparing what two models say."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hftune.merging.verify import Answers, answer, compare
from tests.unit.data.helpers import CHATML, make_tokenizer


def test_differences_by_hand() -> None:
    before = Answers([torch.tensor([[1.0, 2.0], [4.0, 3.0]])], [[5, 6, 7], [8]])
    after = Answers([torch.tensor([[1.0, 2.5], [2.0, 3.0]])], [[5, 6, 7], [9]])
    result = compare(before, after)
    assert result.largest == 2.0
    assert result.mean == (0.5 + 2.0) / 4
    assert result.same_choice == 0.5  # the second position prefers another token
    assert result.same_greedy == 0.5
    assert "50%" in str(result)


def test_a_reward_model_has_no_greedy_answers() -> None:
    scores = Answers([torch.tensor([0.25])], [])
    result = compare(scores, Answers([torch.tensor([0.5])], []))
    expected = {"largest": 0.25, "mean": 0.25, "relative": 1.0, "same_choice": None, "same_greedy": None}
    assert result.to_dict() == expected
    assert str(result).startswith("scores differ by 2.5e-01")


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ raise_exception('begin with a system turn') }}"])
def test_a_template_that_takes_no_question_is_left_out(template: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    asked, plain = make_tokenizer(template), make_tokenizer(CHATML)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(asked), **sizes)).eval()
    said = answer(model, asked, new_tokens=1)
    asked.chat_template = None
    assert all(map(torch.equal, said.logits, answer(model, asked, new_tokens=1).logits))
    assert said.logits[0].shape != answer(model, plain, new_tokens=1).logits[0].shape
