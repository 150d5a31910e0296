"""Checkpoints of adapters that began with a part of the base: of the whole base on disk, and the same run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from tests.unit.models.adapting import load, logits
from tests.unit.trainers.tiny import ROWS, plain_trainer

LORA = ("--use_peft", "--lora_r", "4", "--init_lora_weights")


def losses(run: Any) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    "init", ["pissa", *(pytest.param(other, marks=pytest.mark.slow) for other in ("true", "olora"))]
)
def test_a_run_without_deepspeed_goes_on(tiny_model: Path, tmp_path: Path, init: str) -> None:
    flags = [*LORA, init, "--lora_modules_to_save", "norm"]
    whole = plain_trainer(tiny_model, tmp_path / "whole", *flags)
    whole.train()
    again = plain_trainer(tiny_model, tmp_path / "again", *flags)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert len(losses(whole)) == 4 and losses(again) == losses(whole)
    trained = {name: p for name, p in whole.model.named_parameters() if p.requires_grad}
    assert all(torch.equal(p, again.model.get_parameter(name)) for name, p in trained.items())


def test_a_checkpoint_is_an_adapter_of_the_base_on_disk(tiny_model: Path, tmp_path: Path) -> None:
    run = plain_trainer(tiny_model, tmp_path, *LORA, "pissa")
    run.train()
    folder = tmp_path / "checkpoint-4"
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 2 * 4
    plain = PeftModel.from_pretrained(load(tiny_model), folder).eval()
    torch.testing.assert_close(logits(plain), logits(run.model.eval()), atol=1e-3, rtol=1e-3)


def test_the_best_checkpoint_is_read_back(tiny_model: Path, tmp_path: Path) -> None:
    """The larger loss is called the better one here, so that the best checkpoint is not the last."""
    flags = [*LORA, "pissa", "--load_best_model_at_end", "1", "--eval_strategy", "steps"]
    flags += ["--eval_steps", "2", "--metric_for_best_model", "loss", "--greater_is_better", "1"]
    run = plain_trainer(tiny_model, tmp_path, *flags, eval_dataset=ROWS[:8])
    run.train()
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    plain = PeftModel.from_pretrained(load(tiny_model), tmp_path / "checkpoint-2").eval()
    torch.testing.assert_close(logits(plain), logits(run.model.eval()), atol=1e-3, rtol=1e-3)
