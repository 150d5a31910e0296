"""The same loss and gradients padded and side by side, in models that are more than attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hftune.data.collators import CausalCollator, FlatCollator
from hftune.models.attention.documents import isolate_documents
from hftune.models.attention.isolation import MIXERS, PADDED, has_attention, isolation_method
from hftune.models.attention.layout import choose_attention
from hftune.models.attention.machine import Machine
from hftune.models.classes import NOT_TRAINED
from tests.table.tiny import UNBUILT, tiny_config

VOCABULARY = 97
LENGTHS = [21, 3, 40, 1, 2, 9]
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.2,
}  # fmt: skip
BOTH = {"layer_types": ["linear_attention", "full_attention"]}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gated delta rule": ("Qwen3_5TextConfig", {**BOTH, **DELTA}),
    "gated delta rule, experts": (
        "Qwen3NextConfig", {**BOTH, **DELTA, **EXPERTS, "shared_expert_intermediate_size": 16}
    ),
    "mamba": ("MambaConfig", {"state_size": 4, "time_step_rank": 4}),
    "mamba 2": ("BambaConfig", {**MAMBA2, "attn_layer_indices": [1]}),
    "mamba 2, experts": ("GraniteMoeHybridConfig", {**MAMBA2, **EXPERTS, **BOTH, "shared_intermediate_size": 16}),
    "short convolutions": ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    "lightning attention": ("MiniMaxConfig", {**BOTH, **EXPERTS, "block_size": 8}),
    "gated recurrence": (
        "RecurrentGemmaConfig", {"lru_width": 32, "attention_window_size": 7, "num_hidden_layers": 3}
    ),
}  # fmt: skip


def tiny(name: str) -> Any:
    config_name, more = CONFIGS[name]
    config = getattr(transformers, config_name)(**{**SMALL, **more})
    return drawn(config).train()


def drawn(config: Any) -> Any:
    """A model with biases and states that are not 0."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return model


def apart(model: Any) -> Any:
    """As a run loads it."""
    way, _ = isolation_method(model.config, type(model))
    if has_attention(model.config):
        chosen, _ = choose_attention(model.config, type(model), Machine())
        model.set_attn_implementation(chosen)
    isolate_documents(model, way)
    return model


@pytest.fixture(scope="module")
def documents() -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]
    return [{"input_ids": row, "labels": row} for row in ids]


def loss_and_gradients(model: Any, batch: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    batch = dict(batch)
    labels = batch.pop("labels")[:, 1:]
    logits = model(**{**batch, "use_cache": False}).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    return loss.item(), {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def assert_alike(found: Any, expected: Any) -> None:
    assert found[0] == pytest.approx(expected[0], abs=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        off = (found[1][name] - gradient).abs().max()
        assert off <= 2e-5 * gradient.abs().max().clamp(min=1), (name, off)


@pytest.mark.parametrize("name", CONFIGS)
def test_same_loss_and_gradients(name: str, documents: list[dict[str, list[int]]]) -> None:
    model = tiny(name)
    expected = loss_and_gradients(model, CausalCollator(pad_token_id=0)(documents))
    assert isolation_method(model.config, type(model))[0] == MIXERS
    apart(model)
    assert_alike(loss_and_gradients(model, FlatCollator()(documents)), expected)
    # A single document, whose borders transformers' own path of a layer refuses.
    alone = loss_and_gradients(model, CausalCollator(pad_token_id=0)(documents[:1]))
    assert_alike(loss_and_gradients(model, FlatCollator()(documents[:1])), alone)
    # And padded rows as before: evaluation may pad what training packs.
    assert_alike(loss_and_gradients(model, CausalCollator(pad_token_id=0)(documents)), expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_pass_between_changes_nothing_that_is_recomputed(
    reentrant: bool, documents: list[dict[str, list[int]]]
) -> None:
    """KTO's second pass, say, of other documents: layers are recomputed with those of their own."""
    model, batch = apart(tiny("gated delta rule")), FlatCollator()(documents)
    expected = loss_and_gradients(model, batch)
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    labels = batch.pop("labels")[:, 1:]
    logits = model(**batch).logits[:, :-1]
    other = FlatCollator()([{"input_ids": [5] * 38, "labels": [5] * 38} for _ in range(2)])
    with torch.no_grad():
        model(**{name: value for name, value in other.items() if name != "labels"})
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    assert_alike((loss.item(), {name: one.grad for name, one in model.named_parameters()}), expected)


TYPES = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {*UNBUILT, *NOT_TRAINED})


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_every_type_of_transformers(model_type: str, documents: list[dict[str, list[int]]]) -> None:
    """Whose tiny model reads padded rows at all."""
    try:
        model = drawn(tiny_config(model_type)).eval()
        expected = loss_and_gradients(model, CausalCollator(pad_token_id=0)(documents))
    except Exception as error:
        pytest.skip(f"no padded rows either: {error}")
    if isolation_method(model.config, type(model))[0] == PADDED:
        pytest.skip("its rows are padded")
    assert_alike(loss_and_gradients(apart(model), FlatCollator()(documents)), expected)
