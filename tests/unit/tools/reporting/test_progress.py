"""A progress file is read as it grows, whatever it holds."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from hftune.tools.reporting import progress as reading
from hftune.tools.reporting.progress import Log
from hftune.tools.reporting.stages import curves_of
from tests.unit.tools.reporting.files import log_line


def test_it_is_read_as_it_grows(tmp_path: Path) -> None:
    found, file = Log(tmp_path), tmp_path / "progress.jsonl"
    assert not found.read() and found.lines == [] and found.written is None
    file.write_text(log_line(1, 0) + log_line(2, 0)[:20])
    assert found.read() and [line["step"] for line in found.lines] == [1]
    assert not found.read(), "half a line is none yet"
    with file.open("a") as stream:
        stream.write(log_line(2, 0)[20:] + log_line(3, 0))
    assert found.read() and [line["step"] for line in found.lines] == [1, 2, 3]
    assert found.written == file.stat().st_mtime
    # The stage begins anew: another file of the name, though a longer one.
    new = tmp_path / "new"
    new.write_text("".join(log_line(step, 0) for step in (7, 8, 9, 10)))
    os.replace(new, file)
    assert found.read() and [line["step"] for line in found.lines] == [7, 8, 9, 10]
    file.write_text(log_line(1, 0))
    assert found.read() and [line["step"] for line in found.lines] == [1], "cut short in place"
    file.unlink()
    assert not found.read() and found.lines == []


def test_what_is_no_line_is_left_out(tmp_path: Path) -> None:
    wrong = ["[1, 2]", '{"step": "1", "time": 1}', '{"step": 1}', '{"step": 1, "time": Infinity}', "[" * 100_000]
    wrong += ['{"step": Infinity, "time": 1}', '{"step": 1, "step": 1, "time": 1}', "\x00" * 100]
    (tmp_path / "progress.jsonl").write_text("".join(f"{text}\n" for text in wrong) + log_line(5, 0))
    found = Log(tmp_path)
    assert found.read() and [line["step"] for line in found.lines] == [5]


def test_only_numbers_are_kept(tmp_path: Path) -> None:
    odd = {"loss": math.inf, "kl": float("nan"), "text": "\x1b[2J", "none": None, "list": [1]}
    (tmp_path / "progress.jsonl").write_text(json.dumps({"step": 1, "time": 1, **odd}) + "\n")
    found = Log(tmp_path)
    assert found.read() and {*found.lines[0]} == {"step", "max_steps", "time", "loss", "kl"}
    assert curves_of(found.lines)["Loss"]["training"] == ([1], [math.inf])


def test_a_file_that_is_none_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "progress.jsonl")
    assert not Log(tmp_path).read()


def test_it_stays_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST", 100)
    lines = [log_line(step, 0, **({"eval_loss": 1.0} if step % 50 == 0 else {})) for step in range(1, 1001)]
    (tmp_path / "progress.jsonl").write_text("".join(lines))
    found = Log(tmp_path)
    assert found.read() and 40 < len(found.lines) <= 100
    assert [line["step"] for line in found.lines if "eval_loss" in line] == [*range(50, 1001, 50)]
    assert found.lines[-1]["step"] == 1000
    (tmp_path / "progress.jsonl").write_text("".join(log_line(step, 0, eval_loss=1.0) for step in range(1, 901)))
    assert found.read() and len(found.lines) <= 100, "evaluations alone are thinned as well"
