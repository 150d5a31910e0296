"""What a run writes and shows of itself while it trains."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from hftune import terminal
from hftune.logging import get_logger
from hftune.tools.reporting.progress import read_progress
from hftune.trainers.progress import ProgressFile, ProgressLine


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


STATE = SimpleNamespace(global_step=3, max_steps=10)
LOGS = {"loss": 1.23456, "tokens_per_second": 12345.6, "learning_rate": 1e-3, "total_flos": 9.0, "text": "x"}
PLAIN = "step 3/10, loss 1.235, 12,346 tokens/s, lr 0.001, 21.5 GB, 35 s left"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Lines that stay, the last line that moves, lines of the log alone; `at_terminal` says where."""
    found = SimpleNamespace(line="", noted=[], at_terminal=True)
    monkeypatch.setattr(terminal, "show_progress", lambda text: setattr(found, "line", text))
    monkeypatch.setattr(terminal, "log_only", found.noted.append)
    monkeypatch.setattr(terminal, "err", lambda: SimpleNamespace(isatty=lambda: found.at_terminal))
    monkeypatch.setattr("hftune.trainers.progress.peak_memory", lambda: 21.5e9)
    # Training begins at 0, all else is at 10 seconds.
    monkeypatch.setattr("hftune.trainers.progress.time.monotonic", iter([0, 0, *[10] * 100]).__next__)
    monkeypatch.setattr(get_logger(), "propagate", True)
    caplog.set_level(logging.INFO, "hftune")
    found.stays = lambda: [record.getMessage() for record in caplog.records]
    return found


def test_at_a_terminal_one_line_moves(shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    line, args = ProgressLine(), SimpleNamespace(disable_tqdm=False)
    line.on_train_begin(args, SimpleNamespace(global_step=1, max_steps=10), None)
    line.on_log(args, STATE, None, logs=LOGS | {"grad_norm": 1.2345, "mfu": 0.4123, "other": 2.0})
    line.on_step_end(args, STATE, None)
    # Two steps took 10 s, seven are left.
    said = "step 3/10, loss 1.235, 12,346 tokens/s, 35 s left, lr 0.001, grad norm 1.23, MFU 41.2%, 21.5 GB"
    assert shown.line == said, "what a narrow terminal may cut off stands last"
    assert shown.stays() == []
    (noted,) = shown.noted
    assert noted == PLAIN.replace("21.5", "grad norm 1.23, MFU 41.2%, other 2, 21.5"), "and the log has all"
    monkeypatch.setattr("hftune.trainers.progress.time.monotonic", lambda: 20)
    line.on_prediction_step(args, STATE, None, eval_dataloader=[1, 2, 3])
    assert shown.line == "step 3/10, evaluating: batch 1/3"
    line.on_log(args, STATE, None, logs={"eval_loss": 2.0, "eval_runtime": 3.0, "epoch": 0.5})
    assert shown.stays() == ["step 3/10, eval_loss 2, epoch 0.5"]


@pytest.mark.parametrize("at_terminal, disable", [(False, False), (True, True)])
def test_elsewhere_each_log_is_a_line(shown: Any, at_terminal: bool, disable: bool) -> None:
    shown.at_terminal = at_terminal
    line, args = ProgressLine(), SimpleNamespace(disable_tqdm=disable)
    line.on_train_begin(args, SimpleNamespace(global_step=1, max_steps=10), None)
    line.on_log(args, STATE, None, logs=LOGS)
    line.on_step_end(args, STATE, None)
    assert shown.stays() == [PLAIN] and shown.line == ""
    line.on_log(args, STATE, None, logs={"train_runtime": 1.0, "train_loss": 1.0})
    assert len(shown.stays()) == 1, "the last words of the run have these"
    line.on_log(args, SimpleNamespace(global_step=10, max_steps=10), None, logs={"loss": 1.0})
    assert shown.stays()[1:] == ["step 10/10, loss 1, 21.5 GB"], "of the last step nothing is left"
