"""Models and attentions that keep documents of one row apart, and those that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import transformers

from hftune.errors import ArgumentError
from hftune.models.attention.isolation import (
    ATTENTION,
    MIXERS,
    PADDED,
    has_attention,
    isolation_method,
    refuse_attention,
    refuse_unknown,
)
from hftune.models.attention.machine import Machine
from hftune.models.attention.segments import SEGMENTS, VARLEN
from hftune.models.classes import causal_class

HOPPER = Machine(major=9, half=True, flash=frozenset({2, 3, 4}), varlen=True, flex=True)


@pytest.mark.parametrize(
    ("model", "way", "words"),
    [
        *[(name, ATTENTION, "") for name in ("Llama", "Qwen3", "Mistral", "Gemma2", "Phi3", "GptOss", "GPT2")],
        *[(name, MIXERS, "linear_attention") for name in ("Mamba", "Jamba", "MiniMax", "Qwen3_5Text")],
        ("NemotronH", MIXERS, "linear_attention, mlp"),
        ("FalconH1", MIXERS, "hybrid"),
        ("DeepseekV32", PADDED, "indexed_attention"),
        ("DeepseekV4", PADDED, "compressed_sparse_attention"),
        ("Rwkv", PADDED, "a recurrent state"),
        ("GPTNeo", PADDED, "attention of its own"),
        ("Bloom", PADDED, "attention of its own"),
        ("Roberta", PADDED, "positions from its pad token"),
        ("Doge", PADDED, "changes the mask"),
        ("InklingText", PADDED, "more than masks (position_bias)"),
        ("Inkling2Text", PADDED, "more than masks (position_bias, sinks)"),
    ],
)
def test_what_keeps_documents_apart(model: str, way: str, words: str) -> None:
    config = getattr(transformers, f"{model}Config")()
    found, reason = isolation_method(config, causal_class(config))
    assert found == way and words in reason and bool(reason) == (way != ATTENTION)


def test_layers_of_a_new_kind_are_read_as_padded_rows() -> None:
    config = transformers.Qwen3_5TextConfig()
    config.__dict__["layer_types"] = ["linear_attention", "made_up"]
    assert isolation_method(config, causal_class(config))[0] == PADDED


def test_which_models_attend() -> None:
    jamba, mamba = transformers.JambaConfig(), transformers.MambaConfig(num_hidden_layers=1)
    assert [has_attention(config) for config in (jamba, mamba, transformers.LlamaConfig())] == [True, False, True]


def test_code_that_comes_with_a_model_cannot_be_checked() -> None:
    class OwnConfig(transformers.PreTrainedConfig):
        model_type = "own"

    assert causal_class(OwnConfig()) is None
    way, reason = isolation_method(OwnConfig(), None)
    assert way == PADDED and "comes with the model" in reason


@pytest.mark.parametrize(
    ("asked", "machine", "words"),
    [
        ("flash_attention_2", Machine(half=True), "needs a GPU and half precision"),
        ("flash_attention_3", replace(HOPPER, half=False), "needs a GPU and half precision"),
        ("sdppa", HOPPER, "there is no attention sdppa"),
        ("paged|eager", HOPPER, "not known to keep packed documents apart"),
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
    refuse_unknown(asked, HOPPER)


def test_where_each_row_is_a_document_any_attention_may_be_asked_for() -> None:
    refuse_unknown("someone/kernel", HOPPER)
    refuse_unknown("paged|eager", HOPPER)
    with pytest.raises(ArgumentError, match="there is no attention nope") as caught:
        refuse_unknown("nope", HOPPER)
    assert "sdpa, eager, hftune_segments" in str(caught.value)
    with pytest.raises(ArgumentError, match="needs a GPU and half precision"):
        refuse_unknown("flash_attention_2", Machine(half=True))
