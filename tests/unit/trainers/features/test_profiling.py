"""A profile of some of a process's steps."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.trainers.features import profiling
from hftune.trainers.features.profiling import FOLDER, Profiling
from tests.unit.trainers.features import made_up


def steps(folder: Path, first: int, last: int, taken: int) -> Any:
    """The callback after this many steps, each one product of matrices, and the end of training."""
    run = made_up.run(args={"profile_step_start": first, "profile_step_end": last})
    Profiling().on_built(run)
    (callback,), args = run.callbacks, SimpleNamespace(output_dir=str(folder))
    for _ in range(taken):
        callback.on_step_begin()
        torch.ones(4, 4) @ torch.ones(4, 4)
        callback.on_step_end(args, None, None)
    callback.on_train_end(args, None, None)
    return callback


def test_a_trace_and_a_table(tmp_path: Path) -> None:
    assert steps(tmp_path, 2, 3, taken=5).profiler is None
    table = (tmp_path / FOLDER / "operators-rank0.txt").read_text()
    assert "aten::mm" in table and "[4, 4]" in table and "By shape" in table
    assert b"traceEvents" in gzip.decompress((tmp_path / FOLDER / "trace-rank0.json.gz").read_bytes())


def test_a_run_that_ends_sooner_has_what_there_was(tmp_path: Path) -> None:
    steps(tmp_path, 1, 9, taken=2)
    assert (tmp_path / FOLDER / "operators-rank0.txt").is_file()


def test_nothing_profiled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(profiling, "notice", said.append)
    steps(tmp_path, 4, 5, taken=3)
    assert "--profile_step_start is 4, and 3 steps were taken" in said[0] and not (tmp_path / FOLDER).exists()
