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


def test_in_words_and_as_values() -> None:
    scores = Comparison(0.5, 0.25, None, None)
    assert str(scores) == "scores differ by 5.0e-01 at most, 2.5e-01 on average"
    assert "same most likely token at 75.0%; same greedy answers: 50%" in str(Comparison(0.5, 0.25, 0.75, 0.5))
    assert scores.to_dict() == {
        "largest": 0.5, "mean": 0.25, "same_choice": None, "same_greedy": None, "relative": 0.0
    }  # fmt: skip


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


@pytest.mark.parametrize(("shares", "asked"), [(True, True), (True, False), (False, True), (False, False)])
def test_ties_are_those_of_the_config(shares: bool, asked: bool) -> None:
    table, other = torch.zeros(3, 2), torch.zeros(3, 2)
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(tie_word_embeddings=asked))
    model: Any = SimpleNamespace(
        config=config,
        get_input_embeddings=lambda: SimpleNamespace(weight=table),
        get_output_embeddings=lambda: SimpleNamespace(weight=table if shares else other),
    )
    if shares == asked:
        verify._check_ties(model)
    else:
        with pytest.raises(ManifestError, match="tied" if shares else "apart"):
            verify._check_ties(model)
    model.get_output_embeddings = lambda: None
    verify._check_ties(model)


def test_both_forms_of_a_quantised_base_are_compared_with_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Training says 1 and 2; this merge 1 and 3, the one into the other form of the base 1 and 6."""
    said = {True: Answers([torch.tensor([[1.0, 6.0]])], [[1]]), False: Answers([torch.tensor([[1.0, 3.0]])], [[1]])}
    written: list[Any] = []

    def load(plan: Any, *, quantised: bool) -> Any:
        assert quantised
        return "as training saw it"

    def write_other(plan: Any, folder: Path, size: str | None) -> None:
        assert folder.is_dir() and folder.parent == tmp_path
        written.append((plan, size))

    monkeypatch.setattr(verify, "on_demand", lambda name: load)
    monkeypatch.setattr(verify, "answer", lambda model, tokenizer: Answers([torch.tensor([[1.0, 2.0]])], [[1]]))
    monkeypatch.setattr(verify, "write_model", write_other)
    monkeypatch.setattr(verify, "plan_merge", lambda inputs, dequantise: (inputs, dequantise))
    monkeypatch.setattr(verify, "_answers", lambda plan, folder, tokenizer: said[True])
    for dequantise, own, other in ((True, "dequantized", "original"), (False, "original", "dequantized")):
        plan: Any = SimpleNamespace(inputs="inputs", dequantise=dequantise)
        found: Any = verify._compare_both_bases(plan, tmp_path, said[False], "tokenizer", "2GB")  # type: ignore[arg-type]
        assert written.pop() == (("inputs", not dequantise), "2GB")
        assert found["largest"] == found["merge_base"][own]["largest"] == 1.0
        assert found["merge_base"][other]["largest"] == 4.0 and list(found["merge_base"]) == [own, other]
    assert not list(tmp_path.iterdir())


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
