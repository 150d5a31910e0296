"""The part below the head is found, and tied heads are written once."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hftune.models.structure import body_of, without_tied
from tests.table.tiny import tiny_config

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_saved_once_from_copies(tied: bool, tmp_path: Path) -> None:
    """DeepSpeed hands out copies of all weights under ZeRO-1 and 2."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied))
    copies = {name: value.clone() for name, value in model.state_dict().items()}
    assert "lm_head.weight" in copies
    model.save_pretrained(tmp_path, state_dict=without_tied(model, copies))
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is not tied
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight.equal(model.lm_head.weight)


@pytest.mark.parametrize(
    ("model_type", "body"), [("llama4_text", "model"), ("mllama", "model"), ("gpt2", "transformer")]
)
def test_the_body_owns_the_embeddings(model_type: str, body: str) -> None:
    """Llama 4 and Mllama name a `base_model` that they do not have."""
    model = AutoModelForCausalLM.from_config(tiny_config(model_type))
    assert body_of(model) is getattr(model, body)
    assert body_of(body_of(model)) is body_of(model), "a body has no other"
