"""Checkpoints in 4 and 8 bit as their makers publish them: every weight as it was drawn, or one message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.packed_weights import packed_checkpoint, whole_shapes
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from hftune.weight_files import weight_shapes
from tests.packed import FORMATS, pack, pack_gpt_oss

# 160 is a block of 128 and a part of one.
WIDE = {"hidden_size": 160, "intermediate_size": 192, "num_hidden_layers": 2, "tie_word_embeddings": False}
IDS = torch.tensor([[5, 9, 17, 33, 41, 8]])


def arguments(stage: str, folder: Path, tmp_path: Path, *flags: str) -> Any:
    given = ["--model_name_or_path", str(folder), "--output_dir", str(tmp_path / "out"), "--use_cpu", "True"]
    given += ["--train_file_dir", str(tmp_path), "--bf16", "False", *flags]
    return parse_arguments(stage, given)


def load(folder: Path, tmp_path: Path, *flags: str, stage: str = "sft") -> Any:
    model_args, _, adapter_args, training_args = arguments(stage, folder, tmp_path, *flags)
    loader: Any = load_reward_model if stage == "rm" else load_causal_lm
    return loader(model_args, adapter_args, training_args, load_tokenizer(model_args, training_args)).eval()


def compare(folder: Path, model: Any) -> None:
    """Weights and logits are those of the same numbers stored whole."""
    whole: Any = AutoModelForCausalLM.from_pretrained(f"{folder}-whole", dtype=torch.float32).eval()
    mine, wanted = model.state_dict(), whole.state_dict()
    assert mine.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(mine[name].float(), tensor, atol=1e-6, rtol=1e-6, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, whole(IDS).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind: str, make_base: Callable, tmp_path: Path) -> None:
    folder = pack(make_base("llama", **WIDE), tmp_path / kind, kind)
    model = load(folder, tmp_path, "--dtype", "float32")
    compare(folder, model)
    assert model.name_or_path == str(folder) == model.config.name_or_path
    assert getattr(model.config, "quantization_config", None) is None
    assert whole_shapes(folder) == weight_shapes(f"{folder}-whole")


@pytest.mark.parametrize("kind", ["fp8", "int4"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_experts_that_are_fused(name: str, kind: str, make_base: Callable, tmp_path: Path) -> None:
    """Stored one by one, packed; one parameter in memory."""
    changes = {"hidden_size": 160, "moe_intermediate_size": 32, "intermediate_size": 192}
    folder = pack(make_base(name, **changes), tmp_path / "packed", kind)
    compare(folder, load(folder, tmp_path, "--dtype", "float32"))
