"""Activations by a formula: of layers, by hand, and of a step, by what is recomputed of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig

from hftune.arguments.entry import parse_arguments
from hftune.preflight.estimating.planner import Planner
from hftune.preflight.estimating.profiles import layer_bytes
from hftune.preflight.facts import resolve
from tests.table.tiny import tiny_config

CONFIG = LlamaConfig(
    vocab_size=100, hidden_size=8, intermediate_size=32, num_hidden_layers=6, num_attention_heads=2, head_dim=4
)
LAYER = 8 * 34 * (1 + 19 / 34 * 0.5) * 2
"""Bytes a token in 32 bit: the MLP has 4 hidden sizes, and 3 matrices for 2."""
INPUT = 8 * 4
"""Bytes a token of what a recomputed layer keeps."""


def test_what_a_layer_keeps() -> None:
    assert layer_bytes(CONFIG, 10, 5, 4, keeps_scores=False) == pytest.approx(10 * LAYER)
    assert layer_bytes(CONFIG, 10, 5, 2, keeps_scores=False) == pytest.approx(5 * LAYER)
    scores = layer_bytes(CONFIG, 10, 5, 4, keeps_scores=True) - layer_bytes(CONFIG, 10, 5, 4, keeps_scores=False)
    assert scores == pytest.approx(5 * 2 * 10 * 5 * 2)


@pytest.mark.parametrize("model_type", ["gemma3n_text", "gemma4_text", "dots3_note_text", "mamba2", "llama"])
def test_any_config(model_type: str) -> None:
    config = tiny_config(model_type)
    few, many = (layer_bytes(config, tokens, tokens, 2, keeps_scores=False) for tokens in (10, 20))
    assert 0 < few == many / 2


def test_the_mean_over_layers() -> None:
    one, other = tiny_config("gemma3n_text"), tiny_config("gemma3n_text")
    one.intermediate_size, other.intermediate_size = [64] * 6, [32] * 3 + [96] * 3
    assert layer_bytes(one, 8, 8, 2, keeps_scores=False) == layer_bytes(other, 8, 8, 2, keeps_scores=False)


@pytest.mark.parametrize(
    ("stage", "flags", "tokens"),
    [
        ("sft", ("--max_length", "64", "--per_device_train_batch_size", "3"), 3 * 64),
        ("pt", ("--block_size", "32", "--per_device_train_batch_size", "2"), 2 * 32),
        ("dpo", ("--max_length", "64", "--per_device_train_batch_size", "3"), 2 * 3 * 64),
    ],
)
def test_what_a_step_keeps(stage: str, flags: tuple[str, ...], tokens: int, tmp_path: Path) -> None:
    CONFIG.save_pretrained(tmp_path)

    def kept(*more: str) -> float:
        given = ["--model_name_or_path", str(tmp_path), "--output_dir", "o", "--use_cpu", "True", "--bf16", "False"]
        planner = Planner(resolve(stage, parse_arguments(stage, [*given, *flags, *more])))
        profile, _, untraced = planner.profile(planner.asked(), planner.numerics(planner.asked()))
        assert untraced is not None
        return sum(profile.kept[kind] for kind in profile.kinds)

    assert kept("--gradient_checkpointing", "False") == pytest.approx(6 * tokens * LAYER, abs=6)
    assert kept("--activation_checkpointing", "full") == 6 * tokens * INPUT
    third = kept("--activation_checkpointing", "full", "--activation_checkpointing_layers", "0-1")
    assert third == pytest.approx(tokens * (4 * LAYER + 2 * INPUT), abs=6)
