"""Checkpoints of adapters that began with a part of the base: of the whole base on disk, and the same run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import Trainer

from hftune.arguments.entry import parse_arguments
from hftune.models.adapters.preparation import add_adapter
from hftune.trainers.stage_trainer import StageTrainer
from tests.unit.models.adapting import load, logits

ROWS = [{"input_ids": list(range(at, at + 12)), "labels": list(range(at, at + 12))} for at in range(3, 35)]


class PlainTrainer(StageTrainer, Trainer):
    pass


def trainer(model: Path, folder: Path, *flags: str, evaluates: bool = False) -> Any:
    argv = ["--model_name_or_path", str(model), "--output_dir", str(folder), "--gradient_checkpointing", "0"]
    argv += ["--use_peft", "--lora_r", "4", "--learning_rate", "1e-2", "--max_steps", "4", "--save_steps", "2"]
    argv += ["--per_device_train_batch_size", "4", "--logging_steps", "1", "--report_to", "none"]
    _, _, adapter_args, training_args = parse_arguments("pt", [*argv, "--disable_tqdm", "1", *flags])
    training_args.packing = False
    adapted = add_adapter(load(model), adapter_args, training_args)
    return PlainTrainer(
        model=adapted, args=training_args, train_dataset=ROWS, eval_dataset=ROWS[:8] if evaluates else None
    )


def losses(run: Any) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    "init", ["pissa", *(pytest.param(other, marks=pytest.mark.slow) for other in ("true", "olora"))]
)
def test_a_run_without_deepspeed_goes_on(tiny_model: Path, tmp_path: Path, init: str) -> None:
    flags = ["--init_lora_weights", init, "--lora_modules_to_save", "norm"]
    whole = trainer(tiny_model, tmp_path / "whole", *flags)
    whole.train()
    again = trainer(tiny_model, tmp_path / "again", *flags)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert len(losses(whole)) == 4 and losses(again) == losses(whole)
    trained = {name: p for name, p in whole.model.named_parameters() if p.requires_grad}
    assert all(torch.equal(p, again.model.get_parameter(name)) for name, p in trained.items())


def test_a_checkpoint_is_an_adapter_of_the_base_on_disk(tiny_model: Path, tmp_path: Path) -> None:
    run = trainer(tiny_model, tmp_path, "--init_lora_weights", "pissa")
    run.train()
    folder = tmp_path / "checkpoint-4"
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 2 * 4
    plain = PeftModel.from_pretrained(load(tiny_model), folder).eval()
    torch.testing.assert_close(logits(plain), logits(run.model.eval()), atol=1e-3, rtol=1e-3)


def test_the_best_checkpoint_is_read_back(tiny_model: Path, tmp_path: Path) -> None:
    """The larger loss is called the better one here, so that the best checkpoint is not the last."""
    flags = ["--init_lora_weights", "pissa", "--load_best_model_at_end", "1", "--eval_strategy", "steps"]
    flags += ["--eval_steps", "2", "--metric_for_best_model", "loss", "--greater_is_better", "1"]
    run = trainer(tiny_model, tmp_path, *flags, evaluates=True)
    run.train()
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    plain = PeftModel.from_pretrained(load(tiny_model), tmp_path / "checkpoint-2").eval()
    torch.testing.assert_close(logits(plain), logits(run.model.eval()), atol=1e-3, rtol=1e-3)
