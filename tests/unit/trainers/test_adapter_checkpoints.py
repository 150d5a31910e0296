"""The best checkpoint of an adapter is reloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel

from tests.unit.models.adapting import load, logits
from tests.unit.trainers.tiny import ROWS, plain_trainer

LORA = ("--use_peft", "--lora_r", "4")


def test_the_best_checkpoint_is_read_back(tiny_model: Path, tmp_path: Path) -> None:
    """The larger loss is called the better one here, so that the best checkpoint is not the last."""
    flags = [*LORA, "--load_best_model_at_end", "1", "--eval_strategy", "steps"]
    flags += ["--eval_steps", "2", "--metric_for_best_model", "loss", "--greater_is_better", "1"]
    run = plain_trainer(tiny_model, tmp_path, *flags, eval_dataset=ROWS[:8])
    run.train()
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    plain = PeftModel.from_pretrained(load(tiny_model), tmp_path / "checkpoint-2").eval()
    torch.testing.assert_close(logits(plain), logits(run.model.eval()), atol=1e-3, rtol=1e-3)
