"""Each stage run once a configuration, with the real script; tests look at the results.

`launched_run` goes through the real launcher; `stage_run` starts the same script by fork, which gives the same run to
the last bit (a test says so) and saves ten seconds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import logged

LAUNCHERS = {
    # name: (launcher, flags, processes)
    "zero2": ("deepspeed --num_gpus 2", ["--deepspeed", "ds_configs/zero2.json"], 2),
    "zero3": ("deepspeed --num_gpus 2", ["--deepspeed", "ds_configs/zero3.json"], 2),
    "single": ("python", [], 1),
    "zero1": ("deepspeed --num_gpus 2", ["--deepspeed", "ds_configs/zero1.json"], 2),
    "one_zero2": ("deepspeed --num_gpus 1", ["--deepspeed", "ds_configs/zero2.json"], 1),
    "single_zero2": ("python", ["--deepspeed", "ds_configs/zero2.json"], 1),
}
METHODS = {
    "full": ["--learning_rate", "1e-3"],
    "lora": ["--use_peft", "--lora_rank", "4", "--target_modules", "all", "--learning_rate", "1e-2"],
    "qlora4": ["--qlora", "--lora_rank", "4", "--learning_rate", "1e-2"],
    "qlora8": ["--use_peft", "--load_in_8bit", "--lora_rank", "4", "--learning_rate", "1e-2"],
}
DATA = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs", "distill": "sft", "rl": "prompts"}
GLOBAL_BATCH = 4


@dataclass
class StageRun:
    """A finished run."""

    folder: Path
    output: str
    manifest: dict[str, Any]
    losses: list[float]


@pytest.fixture(scope="session")
def stage_run(run: Callable, tiny_model: Path, tiny_data: Path, workspace: Path) -> Callable[..., StageRun]:
    """`stage_run("sft", "lora", "zero3")`: run it by fork, or return what an earlier test ran."""
    return runs_once(functools.partial(run, warm=True), tiny_model, tiny_data, workspace / "runs")


@pytest.fixture(scope="session")
def launched_run(run: Callable, tiny_model: Path, tiny_data: Path, workspace: Path) -> Callable[..., StageRun]:
    """As `stage_run`, under the launcher that a user types."""
    return runs_once(run, tiny_model, tiny_data, workspace / "launched")


def runs_once(run: Callable, model: Path, data: Path, folder_of_all: Path) -> Callable[..., StageRun]:
    """A function that runs a stage, each configuration once."""

    @functools.cache
    def once(stage: str, method: str, mode: str, extra: tuple[str, ...] = (), folder: Path | None = None) -> StageRun:
        launcher, flags, processes = LAUNCHERS[mode]
        name = "-".join([stage, method, mode, *(flag.strip("-") for flag in extra if flag.startswith("--"))])
        folder = folder or folder_of_all / name
        finished = run(
            f"run_{stage}.py",
            *flags,
            *("--model_name_or_path", str(model), "--output_dir", str(folder)),
            *("--train_file_dir", str(data / DATA[stage])),
            *("--validation_file_dir", str(data / f"{DATA[stage]}_eval")),
            *("--per_device_train_batch_size", str(GLOBAL_BATCH // processes), "--per_device_eval_batch_size", "2"),
            *("--max_steps", "10" if stage != "rl" else "2", "--logging_steps", "1"),
            *("--lr_scheduler_type", "constant", "--gradient_checkpointing", "False", "--save_strategy", "no"),
            *METHODS[method],
            *(("--block_size", "32") if stage == "pt" else ()),
            *extra,
            launcher=launcher,
        ).check()
        return StageRun(
            folder=folder,
            output=finished.output,
            manifest=json.loads((folder / "hftune.json").read_text()),
            losses=logged(folder),
        )

    return once
