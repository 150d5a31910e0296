"""SIGKILL at random moments: a run always goes on from a whole checkpoint, and ends where an unharmed one does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

STEPS = 40


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_runs_go_on(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path, kills: int) -> None:
    unharmed = losses(run, tiny_model, tiny_data, tmp_path / "unharmed", 0)[1]
    reports, harmed = losses(run, tiny_model, tiny_data, tmp_path / "harmed", kills)
    assert sum(report["killed"] for report in reports) >= kills - 2, reports  # a late one may have finished before
    steps = [report["step"] for report in reports]
    assert steps == sorted(steps) and steps[-1] == STEPS
    assert all(report["not_whole"] == [] for report in reports), "something half written was called a checkpoint"
    assert harmed == unharmed, "same world: bit for bit"
    assert not list((tmp_path / "harmed").glob(".*")), "leftovers of killed runs"


def losses(run: Callable, model: Path, data: Path, output: Path, kills: int) -> tuple[list[dict], list[float]]:
    """Reports of all runs, and the loss of every step as the last one's state has them."""
    flags = ["--model_name_or_path", str(model), "--train_file_dir", str(data / "sft"), "--output_dir", str(output)]
    flags += ["--max_steps", str(STEPS), "--save_steps", "2", "--save_total_limit", "3", "--logging_steps", "1"]
    flags += ["--per_device_train_batch_size", "2", "--resume_from_checkpoint", "auto", "--report_to", "none"]
    flags += ["--gradient_checkpointing", "False", "--learning_rate", "1e-3", "--use_cpu", "True"]
    finished = run("tests/faults/kill_often.py", str(kills), "7", "4.0", "run_sft.py", *flags).check()
    lines = [line for line in finished.output.splitlines() if line.startswith("RUN ")]
    state = json.loads((output / "trainer_state.json").read_text())
    found = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert len(found) == STEPS
    return [json.loads(line.removeprefix("RUN ")) for line in lines], found
