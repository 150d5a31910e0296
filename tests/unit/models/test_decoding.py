"""Answers drawn together are those that transformers draws, with less work."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig

from hftune.models import decoding
from hftune.models.decoding import (
    Drawn,
    Draws,
    GrowingLayer,
    decodes_together,
    decoding_together,
    head_in_pieces,
)
from hftune.models.kernels import fused_lora
from tests.table.tiny import tiny_config

EOS, PAD = 3, 0


def tiny(model_type: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    config = tiny_config(model_type)
    for name, value in fields.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = PAD, EOS
    return model


def prompts() -> dict[str, torch.Tensor]:
    """Two prompts, one padded on the left; each three times, in an order of its own."""
    ids = torch.tensor([[PAD, PAD, 7, 8], [9, 10, 11, 12]])[[0, 1, 0, 1, 1, 0]]
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def config(**options: Any) -> GenerationConfig:
    # The model says almost nothing, so that answers end at random: a few tokens are left to draw from.
    given = {"max_new_tokens": 12, "do_sample": True, "pad_token_id": PAD, "eos_token_id": EOS, "top_k": 0}
    return GenerationConfig(**(given | {"temperature": 1.0} | options))


def drawn(model: Any, given: dict[str, torch.Tensor], options: GenerationConfig) -> torch.Tensor:
    torch.manual_seed(5)
    answers = model.generate(**given, generation_config=options)
    assert isinstance(answers, torch.Tensor)
    return answers


class EndsOften(torch.nn.Module):
    """A head whose end token is likely."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits = self.head(states)
        logits[..., EOS] += 3.5
        return logits


OPTIONS = [{}, {"temperature": 0.7, "top_k": 20}, {"repetition_penalty": 1.3, "top_p": 0.9}, {"do_sample": False}]


@pytest.mark.parametrize(
    ("model_type", "options"),
    [("llama", one) for one in OPTIONS] + [(name, {}) for name in ("mistral", "gemma2", "gpt2")],
)
def test_draws_what_transformers_draws(model_type: str, options: dict[str, Any]) -> None:
    """Also where answers end at different times, and the last of them leave the batch to one."""
    model = tiny(model_type)
    model.lm_head = EndsOften(model.lm_head)
    for given in (prompts(), {"input_ids": torch.tensor([[5, 6, 7]] * 4)}):
        expected = drawn(model, given, config(**options))
        after = torch.get_rng_state()
        with decoding_together(model, torch.float32):
            assert torch.equal(drawn(model, given, config(**options)), expected)
        # What is drawn next in the run is the same as well.
        assert torch.equal(torch.get_rng_state(), after)
    assert "generate" not in vars(model)


def watched(model: Any) -> list[tuple[int, ...]]:
    """Shapes of the tokens of each pass, as they come."""
    shapes: list[tuple[int, ...]] = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_each_prompt_is_read_once_and_ended_answers_leave() -> None:
    model = tiny("llama")
    model.lm_head = EndsOften(model.lm_head)
    shapes = watched(model)
    with decoding_together(model, torch.float32):
        answers = drawn(model, prompts(), config())
    assert shapes[0] == (2, 4)
    assert shapes[1][0] == 6 or shapes[1][0] <= 6 * decoding.FEWER
    rows = [rows for rows, _ in shapes[1:]]
    lengths = [int((row != PAD).sum()) for row in answers[:, 4:]]
    assert rows == sorted(rows, reverse=True) and rows[-1] < 6
    # Nobody waits for a pass that no answer needs: the last token of the longest answer is not read.
    assert len(shapes) == max(lengths)


def test_a_cache_is_copied_once_in_many_tokens() -> None:
    layer, states = GrowingLayer(), torch.randn(2, 3, decoding.ROOM + 40, 4)
    layer.update(states[:, :, :7], -states[:, :, :7])
    places = set()
    for token in range(7, states.shape[2]):
        keys, values = layer.update(states[:, :, token, None], -states[:, :, token, None])
        places.add(keys.data_ptr())
    assert torch.equal(keys, states) and torch.equal(values, -states)
    assert layer.get_seq_length() == states.shape[2] and len(places) == 2
    layer.batch_select_indices(torch.tensor([1, 1, 0]))
    more = torch.randn(3, 3, 1, 4)
    keys, values = layer.update(more, more)
    assert torch.equal(keys, torch.cat([states[[1, 1, 0]], more], dim=2))
    assert torch.equal(values[:, :, :-1], -states[[1, 1, 0]])


@pytest.mark.parametrize(
    ("model_type", "together"),
    [("llama", True), ("gemma2", True), ("mamba", False), ("qwen3_next", False)],
)
def test_models_with_a_state_are_left_to_transformers(model_type: str, together: bool) -> None:
    assert decodes_together(tiny(model_type)) is together


@pytest.mark.parametrize("options", [{"use_cache": False}, {"num_beams": 2}, {"cache_implementation": "static"}])
def test_what_is_asked_for_otherwise_is_left_to_transformers(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "_draw", None)
    model = tiny("llama")
    with decoding_together(model, torch.float32):
        assert drawn(model, prompts(), config(**options)).shape[0] == 6


def test_adapters_are_looked_at_once_for_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    adapted = get_peft_model(tiny("llama"), LoraConfig(target_modules="all-linear"))
    fused_lora.fuse_lora(adapted)
    looked: list[nn.Module] = []
    of = fused_lora.Projection.of
    monkeypatch.setattr(fused_lora.Projection, "of", lambda module, x: looked.append(module) or of(module, x))
    model = adapted.get_base_model()
    with decoding_together(model, torch.float32):
        drawn(model, prompts(), config())
    assert looked and len(looked) == len(set(looked))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_of_what_was_drawn_are_those_of_a_pass_over_whole_answers(temperature: float) -> None:
    """Also of answers whose batch has shrunk, and whatever is sampled from."""
    model, given = tiny("llama"), prompts()
    model.lm_head = EndsOften(model.lm_head)
    with decoding_together(model, torch.float32) as kept:
        whole = drawn(model, given, config(temperature=temperature, top_k=20))
    mask = torch.cat([given["attention_mask"], torch.ones_like(whole[:, 4:])], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=whole, attention_mask=mask, position_ids=positions).logits[:, 3:-1] / temperature
    expected = logits.log_softmax(dim=-1).gather(2, whole[:, 4:, None]).squeeze(2)
    found = kept.log_probs_of(whole, mask, whole.shape[1] - 4)
    written = (whole[:, 4:] != PAD) & (found != 0)
    assert found is not None and torch.allclose(found[written], expected[written], atol=1e-5)
    lengths = [(row != PAD).sum() for row in whole[:, 4:]]
    assert [int(row.sum()) for row in found != 0] >= [int(length) for length in lengths]


def test_none_are_kept_in_16_bits_or_with_dropout() -> None:
    for model in (tiny("llama").bfloat16(), tiny("llama", attention_dropout=0.3).train()):
        with decoding_together(model, torch.float32) as kept:
            drawn(model, prompts(), config())
        assert not kept.batches
    model = tiny("llama")
    with decoding_together(model, torch.bfloat16) as kept:  # in whose forward passes autocast is on, and only there
        drawn(model, prompts(), config())
    assert not kept.batches


def test_log_probabilities_are_given_for_the_same_answers_alone() -> None:
    whole, said = torch.tensor([[0, 5, 6, 7], [4, 5, 8, 0]]), torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    kept = Drawn([(whole, said)])
    assert kept.log_probs_of(whole + 1 - mask, mask, 2) is said  # pads may be anything
    other = whole.clone()
    other[1, 2] = 9
    assert kept.log_probs_of(other, mask, 2) is None
    assert kept.log_probs_of(whole, mask, 3) is None
    assert kept.log_probs_of(whole[:1], mask[:1], 2) is None
    assert Drawn().log_probs_of(whole, mask, 2) is None
    assert Drawn([(whole, said)] * 2).log_probs_of(whole, mask, 2) is None  # tools: an answer of several turns


class Pool(ThreadPoolExecutor):
    """Counts what it is asked for."""

    asked = 0

    def submit(self, *given: Any) -> Any:  # type: ignore[override]
        self.asked += 1
        return super().submit(*given)


@pytest.mark.parametrize("ahead", [False, True])
def test_draws_what_multinomial_draws(ahead: bool) -> None:
    """Four tokens for five answers, of which two leave after the second; how many at first is not known ahead."""
    scores = torch.randn(4, 5, 300, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    expected = [torch.multinomial(step.softmax(dim=-1), num_samples=1).squeeze(1) for step in scores]
    after = torch.get_rng_state()
    torch.manual_seed(2)
    with Pool(1) as pool:
        draws = Draws(5, pool if ahead else None)
        draws.begin()
        for number, step in enumerate(scores):
            here = torch.arange(5) if number < 2 else torch.tensor([0, 2, 3])
            assert torch.equal(draws.pick(step[here], here), expected[number][here])
            if number < 3:
                draws.begin()
    assert pool.asked == (3 if ahead else 0)
    # None too many were drawn.
    assert torch.equal(torch.get_rng_state(), after)


def test_a_logit_that_is_no_number_is_an_error_and_no_token() -> None:
    scores = torch.zeros(2, 5)
    scores[1, 3] = float("nan")
    with pytest.raises(RuntimeError, match="nan"):
        Draws(2, None).pick(scores, torch.arange(2))


@pytest.mark.parametrize("bias", [False, True])
def test_a_head_in_pieces_gives_the_same(bias: bool) -> None:
    torch.manual_seed(0)
    head, states = nn.Linear(8, 2 * decoding.PIECE + 5, bias=bias), torch.randn(3, 1, 8)
    expected = head(states)
    with head_in_pieces(head):
        assert "forward" in vars(head)
        assert torch.allclose(head(states), expected, atol=1e-6)
    other = nn.Sequential(head)
    with head_in_pieces(other), head_in_pieces(None):
        assert "forward" not in vars(head) and "forward" not in vars(other)
