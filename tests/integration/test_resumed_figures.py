"""Figures of a run that was resumed, between two logs, are those of one that was not interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hftune.tools.reporting.progress import read_progress

STEPS, SAVED = 10, 6
"""Logged every 4 steps: the checkpoint holds two steps that no log has, and the end another two."""


# PT sums what SFT does, and DPO what RM does.
@pytest.mark.parametrize(("stage", "data"), [("sft", "sft"), ("rm", "pairs")])
def test_as_if_it_had_not_stopped(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path, stage: str, data: str
) -> None:
    flags = ["--train_file_dir", str(tiny_data / data)]
    flags += ["--model_name_or_path", str(tiny_model), "--max_steps", str(STEPS), "--logging_steps", "4"]
    flags += ["--per_device_train_batch_size", "2", "--save_steps", str(SAVED), "--report_to", "none"]
    flags += ["--use_cpu", "True", "--gradient_checkpointing", "False", "--learning_rate", "1e-3"]
    launcher = {"launcher": "torchrun 2", "warm": True}
    whole, twice = tmp_path / "whole", tmp_path / "twice"
    run(f"run_{stage}.py", *flags, "--output_dir", str(whole), **launcher).check()
    # Its last checkpoint and its result are taken away, as if it had been killed.
    shutil.copytree(whole, twice)
    (twice / f"checkpoint-{STEPS}").rename(tmp_path / "aside")
    manifest = json.loads((twice / "hftune.json").read_text())
    (twice / "hftune.json").write_text(json.dumps(manifest | {"status": "running"}))
    resumed = run(
        f"run_{stage}.py", *flags, "--output_dir", str(twice), "--resume_from_checkpoint", "auto", **launcher
    ).check()
    assert f"checkpoint-{SAVED}" in resumed.output

    expected, found = history(whole), history(twice)
    # Sums over processes are added in no fixed order.
    assert found == [pytest.approx(entry, rel=1e-7) for entry in expected]
    assert len(expected) == 2 + 1, "two logs and the last words"
    names = ("train_loss", "steps", "trained_tokens")
    manifests = [json.loads((folder / "hftune.json").read_text()) for folder in (whole, twice)]
    then, now = ({**manifest, **manifest["metrics"]} for manifest in manifests)
    assert {name: now[name] for name in names} == {name: then[name] for name in names}
    assert now["train_seconds"] > now["metrics"]["train_runtime"], "those before the interruption count"
    speeds = [line["tokens_per_second"] for line in read_progress(twice) if "tokens_per_second" in line]
    assert speeds and min(speeds) > 0
    mean = (4 * expected[0]["loss"] + 4 * expected[1]["loss"]) / 8
    assert now["train_loss"] != pytest.approx(mean, rel=1e-6), "the steps behind the last log count as well"


def history(folder: Path) -> list[dict[str, Any]]:
    """What was logged, but for the clock's and the machine's part in it."""
    entries = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    kept = ("loss", "num_tokens", "step", "train_loss", "learning_rate", "mean_token_accuracy", "entropy")
    kept += ("rewards/margins", "accuracy", "margin", "mean_reward")
    return [{name: entry[name] for name in kept if name in entry} for entry in entries]


def test_the_mean_loss_is_that_of_all_processes(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    """One record on two processes: the second sees a copy without labels, and the loss of its own is 0."""
    record = (tiny_data / "sft" / "train.jsonl").read_text().splitlines()[0]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.jsonl").write_text(record + "\n")
    flags = ["--model_name_or_path", str(tiny_model), "--train_file_dir", str(tmp_path / "data"), "--use_cpu", "True"]
    flags += ["--max_steps", "1", "--per_device_train_batch_size", "1", "--report_to", "none", "--save_strategy", "no"]
    losses = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        launcher = {"launcher": f"torchrun {processes}", "warm": True}
        run("run_sft.py", *flags, "--logging_steps", "10", "--output_dir", str(folder), **launcher).check()
        losses.append(json.loads((folder / "hftune.json").read_text())["metrics"]["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
