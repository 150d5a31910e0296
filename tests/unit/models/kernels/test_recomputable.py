"""Which parts of which architectures can be recomputed."""

from __future__ import annotations

from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hftune.arguments.recomputation import ATTENTION, FULL, MLP, Recomputation
from hftune.models.kernels.activation_checkpointing import members, not_recomputable


def llama() -> LlamaForCausalLM:
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 32}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes))


def test_the_modules_of_a_part() -> None:
    layer = llama().model.layers[0]
    assert list(members(layer, FULL)) == [layer]
    assert list(members(layer, MLP)) == [layer.mlp]
    assert list(members(layer, ATTENTION)) == [layer.self_attn]


def test_what_cannot_be_recomputed() -> None:
    class Whole(PreTrainedModel):
        config_class = LlamaConfig
        supports_gradient_checkpointing = True

        def __init__(self, config: LlamaConfig) -> None:
            super().__init__(config)
            self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(config.num_hidden_layers)])

    config = LlamaConfig(num_hidden_layers=2)
    whole = Whole(config)
    assert not_recomputable(whole, Recomputation()) is None
    assert "as a whole" in str(not_recomputable(whole, Recomputation(("attention",))))
    assert "as a whole" in str(not_recomputable(whole, Recomputation(every=2)))
    whole.supports_gradient_checkpointing = False
    assert "cannot recompute" in str(not_recomputable(whole, Recomputation()))
    assert "no layer 9" in str(not_recomputable(llama(), Recomputation(which="0,9")))
    plain = llama()
    for layer in plain.model.layers:
        layer.mixing = layer.self_attn
        del layer.self_attn
    assert "finds no attention" in str(not_recomputable(plain, Recomputation(("attention",))))
