"""A checkpoint that has all its steps behind it is said; the Trainer would end in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.integrity import TRAINER_STATE
from hftune.checkpoints.resume import report_nothing_left


@pytest.mark.parametrize(
    ("flags", "raise_"),
    [
        (["--max_steps", "10"], "--max_steps 10"),
        (["--max_steps", "11"], None),
        (["--num_train_epochs", "2"], "--num_train_epochs 2"),
        (["--num_train_epochs", "2.5"], None),
    ],
)
def test_a_run_that_is_done_is_said(
    flags: list[str], raise_: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    (tmp_path / TRAINER_STATE).write_text(json.dumps({"global_step": 10, "epoch": 2.0}))
    *_, args = parse_arguments("pt", ["--output_dir", str(tmp_path), "--use_cpu", "True", *flags])
    report_nothing_left(args, str(tmp_path))
    said = [f"nothing is left to train: {tmp_path} has 10 steps (2 epochs) behind it; raise {raise_}"]
    assert logging.notices() == (said if raise_ else [])
