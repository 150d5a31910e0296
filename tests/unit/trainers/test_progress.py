"""What a run writes of itself while it trains."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import TrainerControl, TrainerState, TrainingArguments

from hftune.tools.reporting.progress import read_progress
from hftune.trainers.progress import ProgressFile


def test_a_line_a_log(tmp_path: Path) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    state = TrainerState(global_step=3, max_steps=9, epoch=0.5)
    seen = [0.0]
    callback, control = ProgressFile(lambda: seen[0]), TrainerControl()
    callback.on_train_begin(args, state, control)
    seen[0] = 500.0
    callback.on_log(args, state, control, logs={"loss": 1.5, "note": "text"})
    file = tmp_path / "progress.jsonl"
    with file.open("a") as stream:
        stream.write('{"loss": 1, "st')  # killed
    callback.on_train_begin(args, state, control)
    callback.on_log(args, state, control, logs={"loss": 1.25, "num_tokens": 700.0})
    state.is_world_process_zero = False
    callback.on_log(args, state, control, logs={"loss": 9.0})
    lines = read_progress(tmp_path)
    assert [line.get("loss") for line in lines] == [None, 1.5, None, 1.25]
    assert [line.get("tokens") for line in lines] == [None, 500, 500, 700.0]
    assert lines[1]["step"] == 3 and lines[1]["max_steps"] == 9 and lines[1]["memory_gb"] > 0 and "note" not in lines[1]
    assert json.loads(file.read_text().splitlines()[0])["began"] is True
