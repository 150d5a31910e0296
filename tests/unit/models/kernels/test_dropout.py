"""Dropout of any architecture: where it is, that it is all of it, and when it is off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.kernels.dropout import Probabilities, find_dropouts, outside_config, set_dropout_fields
from tests.architectures import few_quick, make_config

IDS = torch.arange(3, 40)[None]


def make(name: str, attention: str = "eager") -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(make_config(name), attn_implementation=attention)


@pytest.mark.parametrize("name", few_quick())
def test_dropping_all_leaves_the_embeddings(name: str) -> None:
    """With all of what attention and MLP add dropped, each layer must return what it was given, to the bit."""
    model = make(name).train()
    for places in find_dropouts(model, Probabilities(1.0, None)):
        places.set(Probabilities(1.0, None))
    with torch.no_grad():
        states = model(IDS, output_hidden_states=True).hidden_states
        norm = getattr(model.model, "norm", None) or model.model.final_layernorm
        assert all(torch.equal(layer, states[0]) for layer in states[1:-1])
        torch.testing.assert_close(states[-1], norm(states[0]))
        # And nothing is dropped in evaluation.
        torch.testing.assert_close(model.eval()(IDS).logits, make(name).eval()(IDS).logits)


@pytest.mark.parametrize("name", few_quick())
def test_attention_weights_are_dropped(name: str) -> None:
    model = make(name, "sdpa" if name in ("llama", "deepseek_v3") else "eager").train()
    for places in find_dropouts(model, Probabilities(None, 0.5)):
        places.set(Probabilities(None, 0.5))
    with torch.no_grad():
        torch.manual_seed(1)
        first = model(IDS).logits
        assert (first - model(IDS).logits).abs().max() > 1e-3, "the same twice: nothing was dropped"
        torch.manual_seed(1)
        assert torch.equal(first, model(IDS).logits)


def test_own_dropouts_are_used_where_there_are_some() -> None:
    model = make("phi3")
    places = find_dropouts(model, Probabilities(0.3, 0.2))[1]
    places.set(Probabilities(0.3, 0.2))
    layer = model.model.layers[1]
    assert layer.resid_attn_dropout.p == layer.resid_mlp_dropout.p == 0.3
    assert layer.self_attn.attention_dropout == 0.2
    assert not layer.self_attn._forward_hooks and model.model.layers[0].resid_attn_dropout.p == 0.0


def test_a_model_with_neither_place_is_refused() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = make_config("llama")
            self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    with pytest.raises(ArgumentError, match="no place for a dropout on hidden states"):
        find_dropouts(Plain(), Probabilities(0.1, None))
    with pytest.raises(ArgumentError, match="no place for a dropout on attention weights"):
        find_dropouts(Plain(), Probabilities(None, 0.1))


def asked(*flags: str):
    return parse_arguments("sft", ["--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True", *flags])[3]


BOTH = ("--hidden_dropout_prob", "0.1", "--attention_probs_dropout_prob", "0.2")


def test_fields_are_set_under_their_own_names() -> None:
    llama, gpt = LlamaConfig(), GPT2Config()
    for config in (llama, gpt):
        set_dropout_fields(config, asked(*BOTH))
    assert llama.attention_dropout == 0.2 and not hasattr(llama, "hidden_dropout")
    assert (gpt.resid_pdrop, gpt.attn_pdrop, gpt.embd_pdrop) == (0.1, 0.2, 0.1)
    set_dropout_fields(gpt, asked())
    assert (gpt.resid_pdrop, gpt.attn_pdrop) == (0.1, 0.2), "what was not asked for stays"


@pytest.mark.parametrize(
    ("config", "flags", "left"),
    [
        (LlamaConfig(), BOTH, Probabilities(0.1, None)),
        (GPT2Config(), BOTH, Probabilities(None, None)),
        (GPT2Config(), (*BOTH, "--dropout_warmup_steps", "5"), Probabilities(0.1, 0.2)),
        (GPT2Config(), (*BOTH, "--layerwise_dropout", "True"), Probabilities(0.1, 0.2)),
        (LlamaConfig(), ("--hidden_dropout_prob", "0"), Probabilities(None, None)),
    ],
)
def test_what_is_left_to_the_model(config: LlamaConfig, flags: tuple[str, ...], left: Probabilities) -> None:
    found = outside_config(config, asked(*flags))
    assert found == left and bool(found) is (left != Probabilities(None, None))
