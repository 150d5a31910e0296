"""Activation checkpointing in every stage and mode: the same losses, gradient norms and weights, to the last bit.

Dropout is on wherever a stage allows it, so that the random numbers of a recomputed layer must be those of its first
time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.stages import METHODS, STAGES, run_stage

OFF = ("--gradient_checkpointing", "False")
MODES: dict[str, tuple[str, ...]] = {
    "full": ("--activation_checkpointing", "full"),
    "attention": ("--activation_checkpointing", "attention"),
    "mlp": ("--activation_checkpointing", "mlp"),
    "every": ("--activation_checkpointing_every", "2"),
    "reentrant": ("--gradient_checkpointing_kwargs", '{"use_reentrant": true}'),
    "leaked": ("--gradient_checkpointing_kwargs", '{"every_n_layers": 2, "offload": true}'),
    "fms": ("--fsdp_activation_checkpointing", "True", "--selective_checkpointing", "1/2"),
    "ernie": ("--recompute", "True", "--recompute_granularity", "full_attn", "--offload_recompute_inputs", "True"),
    "megatron": ("--recompute_granularity", "selective", "--recompute_modules", "core_attn", "mlp"),
}
"""The first is what is trained without recomputing; `leaked` are the keys that TRL hands on to torch's checkpoint."""


def run(stage: str, model: Path, data: Path, folder: Path, *flags: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    dropout = () if stage == "rl" else ("--hidden_dropout_prob", "0.2", "--attention_probs_dropout_prob", "0.2")
    if stage in ("rm", "dpo"):
        dropout += ("--disable_dropout", "False")
    # The runner switches checkpointing off; what comes later on the command line counts.
    modes = flags if "--gradient_checkpointing" in flags else ("--gradient_checkpointing", "True", *flags)
    flags = ("--attn_implementation", "eager", *dropout, *modes)
    trainer = run_stage(stage, model, data, folder, *flags, monkeypatch=monkeypatch, steps=2)
    history = trainer.state.log_history
    figures = [(entry["loss"], entry["grad_norm"]) for entry in history if "grad_norm" in entry]
    assert len(figures) == 2
    return figures, {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def same(stage: str, modes: list[str], method: str, *where: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, folder = where
    flags = METHODS[method]
    figures, weights = run(stage, model, data, folder / "off", *OFF, *flags, monkeypatch=monkeypatch)
    for mode in modes:
        found, recomputed = run(stage, model, data, folder / mode, *MODES[mode], *flags, monkeypatch=monkeypatch)
        assert found == figures, mode
        assert all(torch.equal(recomputed[name], weights[name]) for name in weights), mode


@pytest.mark.parametrize("stage", ["sft", "dpo", "rl"])
def test_no_bit_changes(
    stage: str, tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same(stage, ["attention", "leaked"], "lora", tiny_model, tiny_data, tmp_path, monkeypatch=monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stage", STAGES)
def test_no_bit_changes_in_any_mode(
    stage: str, method: str, tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same(stage, list(MODES), method, tiny_model, tiny_data, tmp_path, monkeypatch=monkeypatch)
