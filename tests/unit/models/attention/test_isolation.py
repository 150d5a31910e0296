"""Models and attentions that keep documents of one row apart, and those that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from hftune.errors import ArgumentError
from hftune.models.attention.isolation import causal_class, refuse_attention, refuse_unless_isolated
from hftune.models.attention.machine import Machine
from hftune.models.attention.segments import SEGMENTS
from hftune.models.attention.varlen import VARLEN

ALL = frozenset({2, 3, 4})

HOPPER = Machine(major=9, half=True, flash=ALL, varlen=True, flex=True)


def without(machine: Machine, **changes: Any) -> Machine:
    return Machine(**{**vars(machine), **changes})


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("Mamba", "linear_attention"),
        ("Jamba", "linear_attention"),
        ("MiniMax", "linear_attention"),
        ("RecurrentGemma", "linear_attention"),
        ("GPTNeo", "attention of its own"),
        ("Bloom", "attention of its own"),
    ],
)
def test_models_whose_documents_would_mix_are_refused(model: str, words: str) -> None:
    config = getattr(transformers, f"{model}Config")()
    with pytest.raises(ArgumentError, match=words) as caught:
        refuse_unless_isolated(config, causal_class(config))
    assert "--packing False" in str(caught.value)


@pytest.mark.parametrize("model", ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma2", "Phi3", "GptOss", "GPT2", "Mixtral"])
def test_common_models_are_not(model: str) -> None:
    config = getattr(transformers, f"{model}Config")()
    refuse_unless_isolated(config, causal_class(config))


def test_code_that_comes_with_a_model_cannot_be_checked() -> None:
    class OwnConfig(transformers.PreTrainedConfig):
        model_type = "own"

    assert causal_class(OwnConfig()) is None
    with pytest.raises(ArgumentError, match="comes with the model"):
        refuse_unless_isolated(OwnConfig(), None)


@pytest.mark.parametrize(
    ("asked", "machine", "words"),
    [
        ("flash_attention_2", Machine(half=True), "needs a GPU and half precision"),
        ("flash_attention_3", without(HOPPER, half=False), "needs a GPU and half precision"),
        ("someone/kernel", HOPPER, "not known to keep packed documents apart"),
    ],
)
def test_attentions_that_are_asked_for_and_cannot_work(asked: str, machine: Machine, words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as caught:
        refuse_attention(asked, machine)
    assert SEGMENTS in str(caught.value)


@pytest.mark.parametrize("asked", ["sdpa", "eager", "flex_attention", "flash_attention_2", SEGMENTS, VARLEN])
def test_attentions_that_may_be_asked_for(asked: str) -> None:
    refuse_attention(asked, HOPPER)
