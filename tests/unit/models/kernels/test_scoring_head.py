"""`fused_lm_head=True` gives the log-probabilities of the model's own logits, in every architecture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hftune.models.attention.documents import documents_of, isolate_documents
from hftune.models.attention.isolation import ATTENTION
from hftune.models.attention.segments import SEGMENTS
from hftune.models.classes import NOT_TRAINED
from hftune.models.kernels import heads
from hftune.models.kernels.heads import LogitShape, add_scoring_head, padded_rows, rows_to_score, shared_rows
from hftune.models.structure import body_of
from tests.architectures import few_quick
from tests.table.tiny import UNBUILT, tiny_config

# Of plain structure; whose `base_model` is itself; with layers before the head; with logits that are scaled or capped.
SAMPLE = ("llama", "llama4_text", "bert", "electra", "minicpm3", "falcon_h1", "gemma2", "cohere", "mpt")
# BLT's config is none of a decoder.
OTHERS = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - {*SAMPLE, *UNBUILT, *NOT_TRAINED, "blt"})
TEMPERATURE = 0.7


def tiny(model_type: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(model_type)).float().eval()


def wanted(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the next tokens and entropies, (batch, tokens - 1), from plain logits."""
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float() / TEMPERATURE
    log_probs = logits.log_softmax(-1)
    return log_probs.gather(2, ids[:, 1:, None]).squeeze(2), -(log_probs.exp() * log_probs).sum(-1)


@pytest.mark.parametrize("model_type", few_quick([*SAMPLE, *OTHERS], SAMPLE))
def test_equals_plain_logits(model_type: str) -> None:
    entropy_learns = len(model_type) % 2 == 0  # of about half of them
    model, ids = tiny(model_type), torch.randint(5, 250, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    labels = ids.masked_fill(torch.arange(9) < 4, -100)
    expected = wanted(model, ids, mask)
    add_scoring_head(model, TEMPERATURE, outputs=("log_probs", "entropy"), trains_entropy=entropy_learns)
    found = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    for each, exact in zip((found.log_probs, found.entropy), expected, strict=True):
        assert not each[:, :3].any()
        torch.testing.assert_close(each[:, 3:], exact[:, 3:], rtol=5e-4, atol=1e-4)
    (found.log_probs.sum() + found.entropy.sum()).backward()
    assert any(one.grad is not None and one.grad.any() for one in model.parameters())
    # Without it the model does what it did.
    again = model(input_ids=ids, attention_mask=mask, use_cache=False)
    logits = again.logits[:, :-1].float() / TEMPERATURE
    torch.testing.assert_close(
        logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2), expected[0], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("model_type", few_quick([*SAMPLE, *OTHERS], SAMPLE))
def test_structure_says_no_more_than_is_so(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO-3 it decides alone whether the answer head is the model's."""
    model, ids = tiny(model_type), torch.arange(5, 14)[None]
    shape = LogitShape.of(model.config)
    monkeypatch.setattr(heads.zero, "is_partitioned", lambda parameter: True)
    if heads._head_is_all(model, model.forward, shape):
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        states = body_of(model)(**given, use_cache=False).last_hidden_state
        logits = model(**given, use_cache=False).logits
        apart = 1e-2 if model_type == "xlstm" else 1e-3  # its kernels compute in bfloat16
        torch.testing.assert_close(shape(model.get_output_embeddings()(states)), logits.float(), rtol=apart, atol=apart)


@pytest.mark.parametrize(
    ("model_type", "full", "temperature"), [("llama", False, 0.5), ("llama4_text", False, 2.0), ("bert", True, 1.0)]
)
def test_full_logits_only_where_need_be(model_type: str, full: bool, temperature: float) -> None:
    model, ids = tiny(model_type), torch.arange(5, 14)[None]
    add_scoring_head(model, temperature)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "output_attentions": False}
    labels = ids.masked_fill(torch.arange(9) < 4, -100)
    model(**given, labels=labels, fused_lm_head=True)  # tries the head
    asked: list[Any] = []
    body_of(model).register_forward_pre_hook(lambda body, args, kwargs: asked.append(kwargs), with_kwargs=True)
    projected: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda head, given, out: projected.append(given[0].shape[-2]))
    model(**given, labels=labels, fused_lm_head=True)
    assert projected == [9 if full else 5]
    assert asked[0]["output_attentions"] is False, "what is asked of the model is asked of its body"
    assert asked[0]["use_cache"] is False, "nothing is generated"


@pytest.mark.parametrize("model_type", ["llama4_text", "bert"])
def test_no_label_is_a_score_of_zero_with_a_gradient_of_zero(model_type: str) -> None:
    model, ids = tiny(model_type), torch.arange(5, 14)[None]
    add_scoring_head(model)
    none = torch.full_like(ids, -100)
    found = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=none, fused_lm_head=True)
    found.log_probs.sum().backward()
    assert not found.log_probs.any()
    assert all(one.grad is None or not one.grad.any() for one in model.parameters())


def test_entropies_have_a_gradient_where_a_bonus_trains_them() -> None:
    ids = torch.arange(5, 14)[None]
    gradients = []
    for formula in (True, False):
        model = tiny("llama")
        if formula:
            log_probs = (model(input_ids=ids, use_cache=False).logits[:, :-1] / TEMPERATURE).log_softmax(-1)
            entropy = -(log_probs.exp() * log_probs).sum(-1)
        else:
            given = {"outputs": ("log_probs", "entropy"), "trains_entropy": True}
            add_scoring_head(model, TEMPERATURE, **given)
            mask = torch.ones_like(ids)
            entropy = model(input_ids=ids, attention_mask=mask, labels=ids, fused_lm_head=True).entropy
        entropy.sum().backward()
        gradients.append(model.model.layers[0].mlp.up_proj.weight.grad)
    torch.testing.assert_close(*gradients)


def test_generation_sees_the_arguments_of_the_model() -> None:
    """`generate` refuses what it does not find in the signature."""
    for model_type in ("llama4_text", "bert"):
        model = tiny(model_type)
        add_scoring_head(model)
        ids = torch.arange(5, 9)[None]
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False)
        assert answer.shape[1] <= 6


@pytest.mark.parametrize("model_type", ["llama", "bert"])
@pytest.mark.parametrize("has_head", [True, False])
def test_what_holds_where_nothing_else_is_asked_for(model_type: str, has_head: bool) -> None:
    """Temperature 1, no shared prompts; without `fused_lm_head` labels are the model's own. A head may be hidden."""
    model, ids = tiny(model_type), torch.arange(5, 14)[None]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    plain = model(**given, labels=ids)
    expected = plain.logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    if not has_head:
        model.get_output_embeddings = lambda: None
    add_scoring_head(model)
    found = model(**given, labels=ids, fused_lm_head=True)
    torch.testing.assert_close(found.log_probs, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(**given, labels=ids).loss, plain.loss)
    assert found.entropy is None, "as of a reference"
    assert documents_of(model) is None


def test_rows_share_prompts_where_that_is_asked_for() -> None:
    model = AutoModelForCausalLM.from_config(tiny_config("llama"), attn_implementation=SEGMENTS)
    add_scoring_head(model, shares_prompts=True)
    documents = documents_of(model)
    assert documents is not None
    add_scoring_head(model, shares_prompts=True)
    assert documents_of(model) is documents, "a policy has been taught already"


def test_a_head_in_32_bits_is_trl_s() -> None:
    """Of a model of 16 bits, whose head TRL's trainer has made one of 32; its own would round each logit."""
    model, ids = tiny("llama").bfloat16(), torch.arange(5, 14)[None]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    torch.nn.init.normal_(model.lm_head.weight, std=1.0)
    head = model.lm_head.float()
    head.forward = lambda states: torch.nn.functional.linear(states.float(), head.weight)
    states = model.model(**given, use_cache=False).last_hidden_state[0, :-1].float()
    log_probs = (states @ model.lm_head.weight.float().T).log_softmax(-1)
    add_scoring_head(model, cast_lm_head_to_fp32=True)
    found = model(**given, labels=ids, fused_lm_head=True).log_probs[0]
    torch.testing.assert_close(found, log_probs.gather(1, ids[0, 1:, None]).squeeze(1), rtol=1e-4, atol=1e-4)


PAD = 0
Rows = list[tuple[list[int], list[int]]]


def batch(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts padded on the left, answers on the right, as TRL does it; answers are labelled."""
    left, right = max(len(prompt) for prompt, _ in rows), max(len(answer) for _, answer in rows)
    ids = [[PAD] * (left - len(p)) + p + a + [PAD] * (right - len(a)) for p, a in rows]
    mask = [[0] * (left - len(p)) + [1] * len(p + a) + [0] * (right - len(a)) for p, a in rows]
    labels = [[-100] * left + a + [-100] * (right - len(a)) for p, a in rows]
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(labels)


# Two answers to one prompt with another prompt's between them, and an answer that is cut from the loss.
ROWS: Rows = [([5, 6], [11, 12, 13]), ([7], [14]), ([5, 6], [15, 16]), ([8, 9], [])]


def test_a_row_of_shared_prompts_by_hand() -> None:
    rows = shared_rows(*batch(ROWS))
    # prompt 5 6, its answers 11 12 13 and 15 16, prompt 7, its answer 14; the last row has nothing to score.
    assert rows.inputs["input_ids"].tolist() == [[5, 6, 11, 12, 13, 15, 16, 7, 14]]
    assert rows.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 2, 3, 0, 1]]
    assert rows.inputs["cu_seq_lens_q"].tolist() == [0, 5, 7, 9]  # runs: 5 6 11 12 13, 15 16, 7 14
    assert rows.inputs["max_length_k"] == 5 and rows.inputs["use_cache"] is False
    assert rows.inputs["shared_prompts"].prompts == (2, 1)
    # In the order of the padded rows: 11 12 13 are predicted by 6 11 12, 14 by 7, 15 16 by 6 15.
    assert rows.at.tolist() == [1, 2, 3, 7, 1, 5]
    assert rows.ids.tolist() == [11, 12, 13, 14, 15, 16]
    # A padded row is 2 + 3 tokens, of which the first is never predicted.
    assert rows.spread(torch.arange(1.0, 7.0)).tolist() == [[0, 1, 2, 3], [0, 4, 0, 0], [0, 5, 6, 0], [0] * 4]
    picked = rows.pick(torch.arange(9.0)[None, :, None])
    assert picked.squeeze(1).tolist() == [1, 2, 3, 7, 1, 5]


def test_padded_rows_by_hand() -> None:
    ids, mask, labels = batch(ROWS)
    rows = padded_rows(ids, mask, labels)
    assert torch.equal(rows.inputs["input_ids"], ids) and torch.equal(rows.inputs["attention_mask"], mask)
    assert rows.inputs["use_cache"] is False, "nothing is generated"
    # A row is 5 tokens: labels 11 12 13 at places 2 3 4 of the first, 14 at 2 of the second, 15 16 of the third.
    assert rows.at.tolist() == [1, 2, 3, 6, 11, 12]
    assert rows.ids.tolist() == [11, 12, 13, 14, 15, 16]


def test_a_batch_without_an_answer_is_a_row_all_the_same() -> None:
    rows = shared_rows(*batch([([5, 6], [])]))
    assert rows.inputs["input_ids"].shape == (1, 2) and not len(rows.at) and not len(rows.ids)
    states = torch.ones(1, 2, 3, requires_grad=True)
    column = rows.spread(rows.pick(states).sum(-1))
    column.sum().backward()
    assert column.shape == (1, 1) and states.grad is not None and not states.grad.any()
    # However long the row: its first token and its last one.
    longer = shared_rows(*batch([([5, 6, 7, 8], []), ([5, 9], [])]))
    assert longer.inputs["input_ids"].tolist() == [[5, 8]] and longer.mask.shape == (2, 3)


def test_an_answer_without_a_prompt_leaves_rows_padded() -> None:
    ids = torch.tensor([[5, 6]])
    rows = shared_rows(ids, torch.tensor([[0, 1]]), torch.tensor([[-100, 6]]))
    assert "shared_prompts" not in rows.inputs and rows.at.tolist() == [0]


def model(model_type: str, attention: str) -> Any:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(tiny_config(model_type), attn_implementation=attention).eval()
    if attention == SEGMENTS:
        isolate_documents(made, ATTENTION)
    return made


def test_a_model_that_reads_documents_as_padded_rows_gets_such() -> None:
    made = model("llama", SEGMENTS)
    made.hftune_documents.way = "backbone"
    assert "attention_mask" in rows_to_score(made, *batch(ROWS)).inputs
