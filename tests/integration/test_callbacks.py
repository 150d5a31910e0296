"""A run with callbacks by name: one of the user's, and one that stops it early."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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
