"""What was decided of a model is what is loaded."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.arguments.entry import parse_arguments
from hftune.errors import ArgumentError
from hftune.models.attention.segments import SEGMENTS
from hftune.models.loading import build as module
from hftune.models.loading.build import decide_build, weight_dtype
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer


def parsed(stage: str, model: Path, *flags: str) -> Any:
    return parse_arguments(stage, ["--model_name_or_path", str(model), "--output_dir", "o", "--use_cpu", *flags])


def test_config_attention_and_dtype(tiny_model: Path) -> None:
    model_args, _, adapter_args, training_args = parsed("sft", tiny_model, "--packing", "--use_peft", "--bf16", "True")
    made = decide_build(model_args, adapter_args, training_args)
    assert (made.attention, made.dtype) == (SEGMENTS, torch.bfloat16) and made.config.model_type == "llama"
    whole = dataclasses.replace(adapter_args, use_peft=False)
    assert decide_build(model_args, whole, training_args).dtype == torch.float32
    asked = dataclasses.replace(model_args, attn_implementation="flex_magic")
    with pytest.raises(ArgumentError, match="there is no attention flex_magic"):
        decide_build(asked, adapter_args, training_args)


@pytest.mark.parametrize("stage", ["sft", "rm"])
def test_a_loader_takes_what_was_decided(tiny_model: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides nothing again, and leaves the config for those who load once more."""
    model_args, _, adapter_args, training_args = parsed(stage, tiny_model)
    made = dataclasses.replace(decide_build(model_args, adapter_args, training_args), attention="eager")
    before = copy.deepcopy(made.config.to_dict())
    monkeypatch.setattr(module, "model_config", None)
    load = load_reward_model if stage == "rm" else load_causal_lm
    tokenizer = load_tokenizer(model_args, training_args)
    model: Any = load(model_args, adapter_args, training_args, tokenizer, made)  # type: ignore[operator]
    assert model.config._attn_implementation == "eager"
    assert made.config.to_dict() == before and model.config is not made.config


def test_weights_that_are_updated_stay_in_float32(tiny_model: Path) -> None:
    model_args, _, _, training = parse_arguments("sft", ["--output_dir", "o", "--bf16"])
    assert weight_dtype(model_args, training, trains_all=True) is torch.float32
    assert weight_dtype(model_args, training, trains_all=False) is torch.bfloat16
