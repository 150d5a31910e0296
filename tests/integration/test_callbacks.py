"""A run with callbacks by name: one of the user's, and one that stops it early."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

MINE = """
from transformers import TrainerCallback

class Note(TrainerCallback):
    def __init__(self, file):
        self.file = file

    def on_step_end(self, args, state, control, **kwargs):
        with open(self.file, "a") as stream:
            stream.write(f"{state.global_step} ")
"""


def test_a_run_that_stops_by_itself(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    noted = tmp_path / "noted"
    finished = run(
        "run_sft.py",
        *("--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path / "out"), "--max_steps", "20"),
        *("--train_file_dir", str(tiny_data / "sft"), "--validation_file_dir", str(tiny_data / "sft_eval")),
        *("--eval_strategy", "steps", "--eval_steps", "1", "--save_steps", "1", "--load_best_model_at_end", "True"),
        # Nothing is learnt: the first evaluation stays the best.
        *("--learning_rate", "0", "--early_stopping_patience", "2", "--gradient_checkpointing", "False"),
        *("--callbacks", f'{tmp_path}/mine.py:Note{{"file": "{noted}"}}', "--report_to", "none"),
        warm=True,
    ).check()
    manifest = json.loads((tmp_path / "out" / "hftune.json").read_text())
    assert noted.read_text() == "1 2 3 "
    assert (manifest["status"], manifest["steps"]) == ("complete", 3)
    assert "stopped early, at step 3: loss was no better in 2 evaluations" in finished.output
    assert any("stopped early" in words for words in manifest["notices"])
    assert f"{tmp_path}/mine.py" in manifest["inputs"]
    assert manifest["arguments"]["training"]["early_stopping_patience"] == 2


@pytest.mark.slow
def test_every_checkpoint_is_evaluated(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    """With two processes: the loss of the last checkpoint is what `hftune evaluate` says of the result."""
    out = tmp_path / "out"
    run(
        *("-m", "hftune.cli", "sft", "--nproc", "2", "--model_name_or_path", str(tiny_model), "--output_dir", str(out)),
        *("--train_file_dir", str(tiny_data / "sft"), "--validation_file_dir", str(tiny_data / "sft_eval")),
        *("--max_steps", "2", "--save_steps", "1", "--eval_tasks", "loss", "--report_to", "none", "--use_cpu", "True"),
    ).check()
    state = json.loads((out / "checkpoint-2" / "trainer_state.json").read_text())
    early = [(entry["step"], entry["tasks/loss"]) for entry in state["log_history"] if "tasks/loss" in entry]
    assert [step for step, _ in early] == [1], "what follows a checkpoint is in the next one"
    results = [json.loads((tmp_path / f"out-tasks/checkpoint-{n}/evaluation.json").read_text()) for n in (1, 2)]
    losses = [figures["loss"]["value"] for one in results for figures in one["models"].values()]
    assert losses[0] == early[0][1] and losses[0] > losses[1]
    data = ("--validation_file_dir", str(tiny_data / "sft_eval"), "--eval_tasks", "loss")
    run("-m", "hftune.cli", "evaluate", str(out), *data, "--output_dir", str(tmp_path / "after"), "--use_cpu").check()
    (figures,) = json.loads((tmp_path / "after/evaluation.json").read_text())["models"].values()
    assert figures["loss"]["value"] == pytest.approx(losses[1], rel=1e-5)
