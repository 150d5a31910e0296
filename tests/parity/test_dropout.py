"""Dropout that was asked for is there in training, and off in evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architectures import few_quick
from tests.parity.stages import losses, run_stage


@pytest.mark.parametrize("stage", few_quick(["pt", "sft", "rm", "dpo"], ["rm"]))
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
