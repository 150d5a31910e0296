"""The loss at the places of labels alone equals that of full logits, with every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch._dynamo.testing import CompileCounter
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from hftune.models.kernels import heads
from hftune.models.kernels.heads import LogitShape, add_answer_head
from hftune.models.structure import body_of
from tests.table.tiny import model_class, tiny_config

WORDS = 97
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def tiny(kind: str, *, tied: bool) -> Any:
    torch.manual_seed(0)
    if kind == "gemma2":
        return Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=3.0, tie_word_embeddings=tied))
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize(
    ("kind", "head"),
    [("llama", "trained"), ("llama", "tied"), ("gemma2", "trained"), ("gemma2", "frozen"), ("gemma2", "module")],
)
@pytest.mark.parametrize("dft", [False, True])
@pytest.mark.parametrize("rows", [7, 64])
def test_equals_full_logits(kind: str, head: str, dft: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(heads.CHUNK_BYTES, "cpu", 4 * WORDS * rows)
    monkeypatch.setattr(heads, "KEPT_BYTES", 0)
    model = tiny(kind, tied=head == "tied")
    if head == "frozen":
        model.lm_head.requires_grad_(False)
    if head == "module":
        model.lm_head = type("Head", (torch.nn.Linear,), {})(32, WORDS, bias=True)
    ids = torch.randint(0, WORDS, (2, 20))
    at, targets, factors = torch.arange(1, 39), torch.randint(0, WORDS, (38,)), torch.rand(38)
    all_log_probs = model(input_ids=ids).logits.reshape(-1, WORDS)[at].log_softmax(-1)
    log_probs = all_log_probs.gather(1, targets[:, None])[:, 0]
    expected = -(log_probs * factors * (log_probs.exp().detach() if dft else 1)).sum()
    expected.backward()
    wanted = gradients(model)

    add_answer_head(model)
    found = model(input_ids=ids, answer_at=at, answer_ids=targets, answer_factors=factors, answer_dft=dft)
    (2 * found.loss).backward()
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.log_probs, log_probs)
    torch.testing.assert_close(found.entropy, -(all_log_probs.exp() * all_log_probs).sum(-1))
    torch.testing.assert_close(found.log_sum_sq, all_log_probs.exp().square().sum(-1).log())
    assert torch.equal(found.is_top1, all_log_probs.argmax(-1) == targets)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, 2 * wanted.pop(name), rtol=1e-4, atol=1e-5, msg=name)
    assert not wanted


def test_a_batch_without_labels_projects_one_token() -> None:
    """Other processes wait at the head; more than one token would be work for nothing."""
    model, none = tiny("llama", tied=False), torch.zeros(0, dtype=torch.long)
    add_answer_head(model)
    ids = torch.zeros(1, 4).long()
    model(input_ids=ids, answer_at=none, answer_states=True)  # tries the head
    projected: list[Any] = []
    model.lm_head.register_forward_pre_hook(lambda head, states: projected.append(tuple(states[0].shape)))
    found = model(input_ids=ids, answer_at=none, answer_ids=none, answer_factors=none.float())
    assert projected == [(1, 32)]
    found.loss.backward()
    assert found.loss == 0 and len(found.log_probs) == len(found.entropy) == 0
    assert all(one.grad is None or not one.grad.any() for one in model.parameters())


def test_a_call_without_places_is_the_models_own() -> None:
    model, ids = tiny("llama", tied=False), torch.randint(0, WORDS, (1, 6))
    wanted = model(ids, torch.ones_like(ids)).logits
    add_answer_head(model)
    assert torch.equal(model(ids, torch.ones_like(ids)).logits, wanted)
    # Ids alone say nothing: which logits they are for is not known.
    assert torch.equal(model(ids, answer_ids=ids[0]).logits, wanted)


@pytest.mark.parametrize("trained", [True, False])
def test_under_autocast_figures_are_not_rounded_to_16_bits(trained: bool) -> None:
    model = tiny("llama", tied=False)
    model.lm_head = torch.nn.Linear(32, WORDS, bias=True).requires_grad_(trained)
    torch.nn.init.normal_(model.lm_head.weight, std=4.0)  # large logits, whose mean bf16 would round to 1/16
    ids, at = torch.randint(0, WORDS, (2, 20)), torch.arange(1, 39)
    add_answer_head(model)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=ids).logits.reshape(-1, WORDS)[at].float()
        found = model(input_ids=ids, answer_at=at, answer_ids=at, answer_factors=torch.rand(38))
    log_probs = logits.log_softmax(-1)
    for name, exact in (
        ("entropy", -(log_probs.exp() * log_probs).sum(-1)),
        ("log_sum_sq", log_probs.exp().square().sum(-1).log()),
    ):
        assert getattr(found, name).dtype == torch.float32
        torch.testing.assert_close(getattr(found, name), exact, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.long
@pytest.mark.parametrize("trained", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compiled_once_for_all_numbers_of_labels(trained: bool) -> None:
    """The second number makes it a variable; a third compiles nothing."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES | {"num_hidden_layers": 1}))
    model.lm_head.requires_grad_(trained)
    add_answer_head(model)
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled, ids = torch.compile(model, backend=counter), torch.randint(0, WORDS, (2, 16))
    frames = []
    for count in (5, 6, 7, 11, 4, 20):
        at = torch.arange(count)
        compiled(input_ids=ids, answer_at=at, answer_ids=at, answer_factors=torch.ones(count)).loss.backward()
        frames.append(counter.frame_count)
    assert frames[1:] == frames[1:2] * 5, frames


@pytest.mark.parametrize("model_type", ["llama4_text", "electra", "minicpm3", "gemma4_text", "bert"])
def test_whatever_comes_between_body_and_head(model_type: str) -> None:
    torch.manual_seed(0)
    model = model_class(model_type)(tiny_config(model_type)).eval()
    ids = torch.randint(5, 250, (2, 9))
    at, targets = torch.arange(17), torch.randint(5, 250, (17,))
    expected = model(input_ids=ids, use_cache=False).logits.reshape(18, -1)[at].float().log_softmax(-1)
    add_answer_head(model)
    asked: list[Any] = []
    body_of(model).register_forward_pre_hook(lambda body, args, given: asked.append(given), with_kwargs=True)
    found = model(input_ids=ids, answer_at=at, answer_ids=targets, use_cache=True)
    if model_type in ("llama4_text", "bert"):  # of the one the head is all there is behind the body
        assert asked[-1]["use_cache"] is False, "nothing is generated"
    torch.testing.assert_close(found.log_probs, expected.gather(1, targets[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    loss = model(input_ids=ids, answer_at=at, answer_ids=targets, answer_factors=torch.ones(17)).loss
    loss.backward()
    torch.testing.assert_close(loss, -found.log_probs.sum(), rtol=1e-5, atol=1e-5)
    assert any(one.grad is not None and one.grad.any() for one in model.parameters())


def head_is_all(model: Any) -> bool:
    return heads._head_is_all(model, model.forward, LogitShape.of(model.config))


@pytest.mark.parametrize(
    ("model_type", "fields", "alone"),
    [
        ("llama", {}, True),
        ("llama", {"unpadded_vocab_size": None}, True),
        ("llama", {"unpadded_vocab_size": 2}, False),
        ("gemma3_text", {}, True),
        ("electra", {}, False),
    ],
)
def test_without_a_trial_the_structure_decides(
    model_type: str, fields: dict[str, Any], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_class(model_type)(tiny_config(model_type))
    monkeypatch.setattr(heads.zero, "is_partitioned", lambda parameter: True)
    vars(model.config).update(fields)
    assert head_is_all(model) is alone


def test_what_a_trial_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in 16 bits, and of a model that looks at its ids; one without a head or a body has no head alone."""

    class Looks(LlamaForCausalLM):
        def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
            assert input_ids.shape == kwargs["attention_mask"].shape and kwargs["use_cache"] is False
            return super().forward(input_ids=input_ids, **kwargs)

    model = Looks(LlamaConfig(**SIZES))
    assert head_is_all(model) and head_is_all(model.to(torch.bfloat16))
    with monkeypatch.context() as patch:
        patch.setattr(heads, "body_of", lambda whole: whole)
        assert head_is_all(model) is False
    monkeypatch.setattr(model, "get_output_embeddings", lambda: None)
    assert head_is_all(model) is False


def test_what_a_trial_gives_in_the_place_of_a_body() -> None:
    """A row of ids with as many states; of all else that a body may return, nothing."""
    model = tiny("llama", tied=False)
    with heads.made_up_states(model, model.model) as (ids, states):
        assert ids.shape == states.shape[:2] == (1, ids.shape[1]) and ids.shape[1] > 1
        said = model.model(input_ids=ids)
        assert torch.equal(said.last_hidden_state, states) and said.router_logits is None
        assert not hasattr(said, "__cuda_array_interface__"), "no protocol is spoken"
    with torch.device("meta"), heads.made_up_states(model, model.model) as (ids, states):
        assert ids.device.type == states.device.type == "cpu", "as the model is, whatever the default"
    away = tiny("llama", tied=False).to("meta", torch.bfloat16)
    with heads.made_up_states(away, away.model) as (ids, states):
        assert ids.device.type == states.device.type == "meta" and states.dtype == torch.bfloat16


@pytest.mark.parametrize("own", [True, False])
def test_the_trial_leaves_the_model_as_it_is(own: bool) -> None:
    model = model_class("mixtral")(tiny_config("mixtral")).train()
    body = model.model
    body.layers[0].eval()  # as a frozen part may be
    calls = []
    if own:
        original = body.forward
        body.forward = lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
    before, modes = vars(body).get("forward"), [module.training for module in model.modules()]
    drawn = torch.get_rng_state()
    assert head_is_all(model)
    assert torch.equal(torch.get_rng_state(), drawn) and not calls, "layers may want real rows, or other processes"
    assert vars(body).get("forward") is before and [module.training for module in model.modules()] == modes
    model(input_ids=torch.ones((1, 3), dtype=torch.long))
    assert len(calls) == own


@pytest.mark.parametrize("size", [1e-3, 9.0])
def test_how_far_a_trial_may_be_off(size: float) -> None:
    """By a share of the largest logit, as rounding is; of another shape it is no trial at all."""
    model = tiny("llama", tied=False)
    torch.nn.init.normal_(model.lm_head.weight, std=size)
    for change, fits in (
        (lambda logits: 1.01 * logits, True),
        (lambda logits: 1.05 * logits, False),
        (lambda logits: logits[..., :-1], False),
        (lambda logits: logits[..., :1], False),
        (lambda logits: logits @ logits, False),  # raises, as layers do that want states of another kind
    ):
        found = heads._try_head(
            model, model.forward, model.model, lambda states, change=change: change(model.lm_head(states))
        )
        assert found is fits


def test_a_lora_of_the_head_counts_and_learns() -> None:
    adapted = get_peft_model(tiny("llama", tied=False), LoraConfig(target_modules=["lm_head"], r=2)).eval()
    matrices = adapted.base_model.model.lm_head
    torch.nn.init.normal_(matrices.lora_B["default"].weight)
    ids, at, factors = torch.randint(0, WORDS, (1, 9)), torch.arange(8), torch.rand(8)
    expected = -(adapted(input_ids=ids).logits[0, :-1].log_softmax(-1)[at, ids[0, 1:]] * factors).sum()
    expected.backward()
    wanted = gradients(adapted)
    add_answer_head(adapted.get_base_model())
    loss = adapted(input_ids=ids, answer_at=at, answer_ids=ids[0, 1:], answer_factors=factors).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(adapted), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["trained", "frozen", "module"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_of_tokens_that_share_the_largest_logit_one_is_the_most_likely(head: str, dtype: torch.dtype) -> None:
    model = tiny("llama", tied=False).to(dtype)
    if head == "module":
        model.lm_head = type("Head", (torch.nn.Linear,), {})(32, WORDS, bias=False, dtype=dtype)
    torch.nn.init.zeros_(model.lm_head.weight)
    model.lm_head.requires_grad_(head != "frozen")
    add_answer_head(model)
    every = torch.arange(WORDS)
    found = model(
        input_ids=torch.ones(1, WORDS).long(), answer_at=every, answer_ids=every, answer_factors=every.float()
    )
    assert int(found.is_top1.sum()) == 1


def test_16_bit_gradients_of_the_head_add_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(heads.CHUNK_BYTES, "cpu", 4 * WORDS)
    model = tiny("llama", tied=False).bfloat16()
    ids, targets = torch.randint(0, WORDS, (1, 400)), torch.randint(0, WORDS, (400,))
    hidden = model.model(input_ids=ids).last_hidden_state[0].detach()
    exact = torch.nn.Parameter(model.lm_head.weight.detach().double())
    torch.nn.functional.cross_entropy(hidden.double() @ exact.T, targets, reduction="sum").backward()
    add_answer_head(model)
    model(
        input_ids=ids, answer_at=torch.arange(400), answer_ids=targets, answer_factors=torch.ones(400)
    ).loss.backward()
    found = model.lm_head.weight.grad
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact.grad).norm() / exact.grad.norm() < 0.01
