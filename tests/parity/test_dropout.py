"""Dropout that was asked for, in training: how it grows, which layers have it, and that it is off in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from hftune.trainers.features.asked import DropoutWarmup
from tests.architectures import few_quick
from tests.parity.stages import losses, run_stage


def warmup_of(trainer: Any) -> DropoutWarmup:
    (found,) = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, DropoutWarmup)]
    return found


def values(trainer: Any) -> list[tuple[float, float]]:
    """Hidden and attention dropout of each layer."""
    return [(places.hidden, places.layer.self_attn.attention_dropout) for places in warmup_of(trainer).layers]


def test_it_grows_as_in_erniekit(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--hidden_dropout_prob", "0.4", "--attention_probs_dropout_prob", "0.2", "--dropout_warmup_steps", "4")
    trainer = run_stage("sft", tiny_model, tiny_data, tmp_path / "a", *flags, monkeypatch=monkeypatch, steps=3)
    assert values(trainer) == [pytest.approx((0.2, 0.1))] * 2  # the third step began at 2 of 4
    for step, share in ((0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (9, 1.0)):
        # Also what a resumed run does at its first step.
        warmup_of(trainer).on_step_begin(None, TrainerState(global_step=step), TrainerControl())
        assert values(trainer) == [pytest.approx((0.4 * share, 0.2 * share))] * 2
    layered = run_stage(
        "sft", tiny_model, tiny_data, tmp_path / "b", *flags, "--layerwise_dropout", monkeypatch=monkeypatch, steps=3
    )
    assert values(layered) == [(0.0, 0.0), pytest.approx((0.1, 0.05))]  # layer 1 of 2


@pytest.mark.parametrize("stage", few_quick(["pt", "sft", "rm", "dpo"], ["pt", "rm"]))
def test_it_changes_training_and_not_evaluation(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    data = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs"}[stage]
    held_out = ("--validation_file_dir", str(tiny_data / f"{data}_eval"), "--learning_rate", "0")
    dropped = ("--hidden_dropout_prob", "0.3", "--attention_probs_dropout_prob", "0.3")
    if stage in ("rm", "dpo"):
        dropped += ("--disable_dropout", "False")
    runs = [
        run_stage(stage, tiny_model, tiny_data, tmp_path / name, *held_out, *flags, monkeypatch=monkeypatch)
        for name, flags in (("plain", ()), ("dropped", dropped))
    ]
    if stage != "dpo":  # whose losses are those of log-ratios, 0 at the start
        assert abs(losses(runs[0])[0] - losses(runs[1])[0]) > 1e-3
    evaluated = [entry["eval_loss"] for run in runs for entry in run.state.log_history if "eval_loss" in entry]
    assert evaluated[0] == pytest.approx(evaluated[1], abs=1e-6)
    assert runs[1].model.config.attention_dropout == 0.3
