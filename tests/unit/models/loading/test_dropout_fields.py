"""Dropout that a config has fields for, and what is left to be set on the model."""

from __future__ import annotations

import pytest
from transformers import GPT2Config, LlamaConfig

from hftune.arguments.entry import parse_arguments
from hftune.models.kernels.dropout import Probabilities, outside_config, set_dropout_fields


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


def test_scaled() -> None:
    assert Probabilities(0.2, None).scaled(0.5) == Probabilities(0.1, None)
