"""Comparing what two models say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from hftune.errors import ManifestError
from hftune.merging import verify
from hftune.merging.verify import Answers, Comparison, answer, compare, judge
from tests.unit.data.helpers import CHATML, make_tokenizer


def test_differences_by_hand() -> None:
    before = Answers([torch.tensor([[1.0, 2.0], [4.0, 3.0]])], [[5, 6, 7], [8]])
    after = Answers([torch.tensor([[1.0, 2.5], [2.0, 3.0]])], [[5, 6, 7], [9]])
    result = compare(before, after)
    assert result.largest == 2.0
    assert result.mean == (0.5 + 2.0) / 4
    assert result.same_choice == compare(after, before).same_choice == 0.5  # the second position prefers another token
    assert result.same_greedy == 0.5
    assert "same most likely token at 50.0%; same greedy answers: 50%" in str(result)
    same = compare(before, before)
    assert (same.largest, same.same_choice, same.same_greedy) == (0.0, 1.0, 1.0)


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


@pytest.mark.parametrize("fault", [TypeError("no images"), ValueError("no images"), RuntimeError("no images")])
def test_a_model_that_cannot_be_asked(fault: Exception) -> None:
    """As one that reads no plain text, or lacks a kernel: one message, with the way without."""
    tokenizer = make_tokenizer(CHATML)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).eval()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise fault

    model.model.register_forward_pre_hook(fail)
    with pytest.raises(ManifestError, match=r"LlamaForCausalLM fails in transformers .*no images") as error:
        answer(model, tokenizer)
    assert "--verify False" in str(error.value)


@pytest.mark.parametrize(
    ("relative", "half", "fits"),
    [(1e-4, False, True), (1.1e-4, False, False), (1e-1, True, True), (0.11, True, False), (float("nan"), True, False)],
)
def test_what_is_rounding(relative: float, half: bool, fits: bool) -> None:
    said = Comparison(0.5, 0.25, 1.0, 1.0, relative)
    if fits:
        judge(said, half=half)
        return
    with pytest.raises(ManifestError, match="does not say what base"):
        judge(said, half=half)


@pytest.mark.parametrize(
    ("parameters", "gigabytes", "why"),
    [
        (10**9, 64, "1.0 billion parameters; --verify True"),
        (10**9 - 1, 64, None),
        (10**8, 0.6, None),
        (10**8, 0.59, "0.6 GB of memory are not there"),
    ],
)
def test_what_is_too_large_to_compare(
    monkeypatch: pytest.MonkeyPatch, parameters: int, gigabytes: float, why: str | None
) -> None:
    """Six bytes a parameter: in float32, and half as much again."""
    monkeypatch.setattr(verify, "stored_tensors", lambda folder: {"a": SimpleNamespace(shape=(parameters, 1))})
    free = SimpleNamespace(available=int(gigabytes * 1e9))
    monkeypatch.setattr(verify.psutil, "virtual_memory", lambda: free)
    found = verify._too_large(Path("there"))
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("asked", [True, False, None])
def test_ties_are_those_of_the_config(shares: bool, asked: bool | None) -> None:
    """One that says nothing has none."""
    table, other = torch.zeros(3, 2), torch.zeros(3, 2)
    text = SimpleNamespace() if asked is None else SimpleNamespace(tie_word_embeddings=asked)
    config = SimpleNamespace(get_text_config=lambda: text)
    model: Any = SimpleNamespace(
        config=config,
        get_input_embeddings=lambda: SimpleNamespace(weight=table),
        get_output_embeddings=lambda: SimpleNamespace(weight=table if shares else other),
    )
    if shares == bool(asked):
        verify._check_ties(model)
    else:
        with pytest.raises(ManifestError, match="tied" if shares else "apart"):
            verify._check_ties(model)
    model.get_output_embeddings = lambda: None
    verify._check_ties(model)


@pytest.mark.parametrize("generates", [True, False])
def test_only_a_causal_lm_gives_answers(generates: bool) -> None:
    """As many tokens as are asked for, one answer a prompt; a reward model gives scores alone."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    tokenizer = make_tokenizer(CHATML)
    config = LlamaConfig(vocab_size=len(tokenizer), num_labels=1, pad_token_id=0, eos_token_id=None, **sizes)
    made = LlamaForCausalLM if generates else LlamaForSequenceClassification
    said = answer(made(config).eval(), tokenizer, new_tokens=3)
    assert len(said.logits) == len(verify.PROMPTS) and len(said.greedy) == len(verify.PROMPTS) * generates
    for prompt, logits, greedy in zip(verify.PROMPTS, said.logits, said.greedy, strict=False):
        assert len(greedy) == len(logits) + 3, prompt
    assert all(logits.shape[-1] == (len(tokenizer) if generates else 1) for logits in said.logits)


def test_every_other_prompt_is_a_question_and_answers_are_the_most_likely_ones() -> None:
    """Also of a model that samples unless it is told not to; sixteen tokens unless another number is asked for."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    tokenizer = make_tokenizer(CHATML)
    config = LlamaConfig(vocab_size=len(tokenizer), eos_token_id=None, initializer_range=1.0, **sizes)
    model = LlamaForCausalLM(config).eval()
    model.generation_config.update(do_sample=True, temperature=9.0)
    said = answer(model, tokenizer)
    for number, (prompt, logits, greedy) in enumerate(zip(verify.PROMPTS, said.logits, said.greedy, strict=True)):
        question = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer(question if number % 2 == 0 else prompt)["input_ids"]
        assert greedy[: len(ids)] == ids and len(logits) == len(ids) and len(greedy) == len(ids) + 16
        with torch.no_grad():
            likely = model(torch.tensor([greedy])).logits[0].argmax(-1).tolist()
        assert greedy[len(ids) :] == likely[len(ids) - 1 : -1]


@pytest.mark.parametrize(
    ("asked", "tokenizer", "reason", "compared"),
    [
        ("auto", True, None, True), ("auto", True, "too large", False), ("true", True, "too large", True),
        ("false", True, None, False), ("auto", False, None, False), ("true", False, None, False),
    ],
)  # fmt: skip
def test_when_logits_are_compared(
    asked: str, tokenizer: bool, reason: str | None, compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(verify, "notice", said.append)
    monkeypatch.setattr(verify, "has_tokenizer", lambda folder: tokenizer)
    monkeypatch.setattr(verify, "_too_large", lambda folder: reason)
    monkeypatch.setattr(verify, "_compare_with_adapters", lambda plan, folder: {"largest": 0.0})
    plan: Any = "plan"
    found: Any = verify.verify_merge(plan, Path("there"), verify=asked)
    assert found == ({"largest": 0.0} if compared else None)
    why = "--verify False" if asked == "false" else reason if tokenizer else "there is no tokenizer for the prompts"
    assert [one.endswith(f"({why})") for one in said] == ([] if compared else [True])


@pytest.mark.parametrize(
    ("dtypes", "half"), [(None, True), (["F32"], False), (["F32", "BF16"], True), (["F16"], True), (["I64"], False)]
)
def test_what_was_rounded_to_16_bits(dtypes: list[str] | None, half: bool) -> None:
    """What peft has saved may be in any dtype."""
    tensors = dtypes and [SimpleNamespace(dtype=dtype) for dtype in dtypes]
    plan: Any = SimpleNamespace(outputs=tensors)
    assert verify._is_half(plan) is half
