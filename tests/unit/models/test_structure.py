"""Where the layers, heads, experts and further parts of a model are."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hftune.models.structure import body_of, checkpointed_layers, decoder_layers, gather_experts_at_once, without_tied
from tests.architectures import few_quick, make_config
from tests.table.tiny import model_class, tiny_config


@pytest.mark.parametrize("name", few_quick())
def test_layers_of_every_architecture(name: str) -> None:
    model = AutoModelForCausalLM.from_config(make_config(name))
    layers = decoder_layers(model)
    assert len(layers) == model.config.get_text_config().num_hidden_layers
    owner, attribute = checkpointed_layers(model)
    assert list(getattr(owner, attribute)) == layers


class Plain(PreTrainedModel):
    """Layers that cannot recompute themselves, next to a longer list that is no list of layers."""

    config_class = LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(5))
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(config.num_hidden_layers))


def test_other_lists_are_not_taken_for_layers() -> None:
    model = Plain(LlamaConfig(num_hidden_layers=3))
    assert decoder_layers(model) == list(model.blocks)
    assert checkpointed_layers(model) is None
    del model.blocks
    assert decoder_layers(model) == []


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


@pytest.mark.parametrize(
    ("model_type", "layers"), [("dbrx", True), ("longcat_flash", True), ("mixtral", False), ("llama", False)]
)
def test_experts_that_are_called_one_by_one_are_gathered_at_once(model_type: str, layers: bool) -> None:
    model = model_class(model_type)(tiny_config(model_type))
    marked = [name for name, module in model.named_modules() if getattr(module, "_z3_leaf", False)]
    assert not marked
    count = gather_experts_at_once(model)
    marked = [name for name, module in model.named_modules() if getattr(module, "_z3_leaf", False)]
    assert len(marked) == count and bool(count) is layers and all(name.endswith(".experts") for name in marked)
