"""The real scripts run in this process, one after the other, with the trainer to look at in the end."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

DATA = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs", "rl": "prompts", "distill": "sft"}
STAGES = ("pt", "sft", "rm", "dpo", "rl")
METHODS = {"full": (), "lora": ("--use_peft", "--lora_rank", "4")}
_OWN = {
    "pt": ("--block_size", "32"),
    "rl": (
        *("--num_generations", "2", "--max_completion_length", "8"),
        *("--reward_funcs", "tests/parity/stages.py:sum_of_codes"),
    ),
}


def sum_of_codes(completions: list[Any], **kwargs: Any) -> list[float]:
    """A reward that random completions differ in."""
    return [float(sum(map(ord, str(completion))) % 97) for completion in completions]


def run_stage(
    stage: str, model: Path, data: Path, output: Path, *flags: str, monkeypatch: pytest.MonkeyPatch, steps: int = 1
) -> Any:
    """Run `run_STAGE.py` on one process without a launcher; returns its trainer, trained and saved."""
    import hftune.stage

    kept: list[Any] = []
    finish = hftune.stage.finish_run

    def finish_and_keep(run: Any, trainer: Any, *args: Any) -> Any:
        kept.append(trainer)
        return finish(run, trainer, *args)

    argv = [
        f"run_{stage}.py",
        *("--model_name_or_path", str(model), "--output_dir", str(output), "--train_file_dir", str(data / DATA[stage])),
        *("--per_device_train_batch_size", "2", "--max_steps", str(steps), "--logging_steps", "1"),
        *("--lr_scheduler_type", "constant", "--learning_rate", "1e-2", "--gradient_checkpointing", "False"),
        *("--save_strategy", "no", "--report_to", "none"),
        *_OWN.get(stage, ()),
        *flags,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        patch.setattr(hftune.stage, "finish_run", finish_and_keep)
        importlib.import_module(f"run_{stage}").main()
    (trainer,) = kept
    return trainer


def losses(trainer: Any) -> list[float]:
    """The training loss of each step."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
