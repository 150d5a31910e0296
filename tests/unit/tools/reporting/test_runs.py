"""Which runs there are below a folder, and how far each is, from files alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hftune.checkpoints.manifest import COMPLETE, INTERRUPTED
from hftune.errors import ArgumentError
from hftune.tools.reporting import stages
from hftune.tools.reporting.runs import Runs, last_words, tail
from hftune.tools.watching import watch
from tests.unit.tools.reporting.files import log_line, write_run


def names(*folders: Path) -> list[str]:
    return [run.name for run in Runs(folders).read()]


def test_runs_are_found_below_a_folder(tmp_path: Path) -> None:
    for place in ("sft", "lr=1/sft", "previous/sft", "logs/x", ".hidden/x", "a/b/c/d/e"):
        write_run(tmp_path / "out" / place, 3)
    write_run(tmp_path / "out" / "sft" / "checkpoint-3", 3)
    write_run(tmp_path / "outside", 3)
    (tmp_path / "out" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "out" / "early").mkdir()
    (tmp_path / "out" / "early" / "progress.jsonl").write_text(log_line(1, 0))
    os.utime(tmp_path / "out" / "early" / "progress.jsonl", (1, 1))
    assert names(tmp_path / "out")[0] == "early" and set(names(tmp_path / "out")) == {"early", "lr=1/sft", "sft"}
    assert names(tmp_path / "out" / "sft") == ["sft"]
    assert sorted(names(tmp_path / "out" / "sft", tmp_path / "outside")) == ["outside", "sft"]


def test_a_large_folder_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MOST_ENTRIES", 10)
    for number in range(50):
        (tmp_path / f"empty{number}").mkdir()
    write_run(tmp_path / "one", 1)
    assert len(names(tmp_path)) <= 1
    monkeypatch.setattr(stages, "MOST_ENTRIES", 1000)
    monkeypatch.setattr(stages, "MOST_RUNS", 2)
    for number in range(5):
        write_run(tmp_path / f"run{number}", 1)
    assert len(names(tmp_path)) == 2


def test_states(tmp_path: Path) -> None:
    for name, status in (("done", COMPLETE), ("stopped", INTERRUPTED), ("running", "running"), ("silent", "running")):
        write_run(tmp_path / name, 10, status)
    os.utime(tmp_path / "silent" / "progress.jsonl", (time.time() - 200,) * 2)
    (tmp_path / "loading").mkdir()
    (tmp_path / "loading" / "hftune.json").write_text('{"status": "running"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "hftune.json").write_text("{")
    found = Runs([tmp_path])
    states = {run.name: run.state for run in found.read()}
    assert states == {
        "done": "finished",
        "stopped": "stopped",
        "running": "running",
        "silent": "silent",
        "loading": "loading",
        "broken": "unreadable",
    }
    assert {run.name: run.state for run in found.read()} == states, "the second look as well"
    # Lines that are minutes apart: the same silence is none.
    slow = "".join(json.dumps({"step": n, "max_steps": 9, "time": n * 60.0}) + "\n" for n in range(5))
    (tmp_path / "silent" / "progress.jsonl").write_text(slow)
    os.utime(tmp_path / "silent" / "progress.jsonl", (time.time() - 200,) * 2)
    assert {run.name: run.state for run in Runs([tmp_path]).read()}["silent"] == "running"


def test_how_far_a_run_is(tmp_path: Path) -> None:
    write_run(tmp_path / "sft", 10)
    (run,) = Runs([tmp_path]).read()
    moment = run.moment()
    assert (moment.step, moment.max_steps, moment.seconds_left) == (10, 30, 40.0)
    assert moment.figures["loss"] == 0.3
    # Resumed from step 8: the hour between counts for nothing.
    later = time.time() + 3600
    with (tmp_path / "sft" / "progress.jsonl").open("a") as stream:
        stream.write(json.dumps({"began": True, "step": 8, "max_steps": 30, "time": later + 16}) + "\n")
        stream.write(log_line(10, later))
    run.read()
    assert run.moment().seconds_left == 40.0


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write_run(tmp_path / "secret", 5)
    for name in ("progress.jsonl", "hftune.json", "answers.json"):
        write_run(tmp_path / "out" / "sft", 2)
        place = tmp_path / "out" / "sft" / name
        place.unlink(missing_ok=True)
        place.symlink_to(tmp_path / "secret" / name)
        (run,) = Runs([tmp_path / "out"]).read()
        assert run.state == "unreadable" and f"{name} is a link out of" in run.fault and run.log.lines == []
        place.unlink()
    # Within the folder it may.
    (tmp_path / "out" / "sft" / "progress.jsonl").rename(tmp_path / "out" / "kept")
    (tmp_path / "out" / "sft" / "progress.jsonl").symlink_to("../kept")
    write_run(tmp_path / "x", 2)
    os.replace(tmp_path / "x" / "hftune.json", tmp_path / "out" / "sft" / "hftune.json")
    (run,) = Runs([tmp_path / "out"]).read()
    assert len(run.log.lines) == 3


def test_checkpoints_that_are_whole(tmp_path: Path) -> None:
    write_run(tmp_path / "sft", 1)
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-x", "checkpoint-8"):
        (tmp_path / "sft" / name).mkdir()
        if name != "checkpoint-8":
            (tmp_path / "sft" / name / "hftune_checkpoint.json").write_text("{}")
    assert Runs([tmp_path]).read()[0].checkpoints() == [9, 10]


def test_last_words(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "sft.log").write_text("one\n\ntwo\nthree\n")
    assert last_words(tmp_path, tmp_path, 2) == ("logs/sft.log", ["two", "three"])
    (tmp_path / "run.log").write_text("old\n")
    os.utime(tmp_path / "run.log", (1, 1))
    assert last_words(tmp_path, tmp_path, 2)[0] == "logs/sft.log"
    assert last_words(tmp_path / "none", tmp_path, 2) == ("", [])
    assert last_words(tmp_path, tmp_path / "logs", 2)[0] == "logs/sft.log", "run.log lies outside"
    (tmp_path / "large.log").write_text("x" * 100_000 + "\nlast\n")
    assert tail(tmp_path / "large.log", 5) == ["last"]


def test_a_folder_that_may_not_be_looked_into_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's calls: the owner of the tests may be one for whom permissions do not count."""
    write_run(tmp_path / "a", 1)
    write_run(tmp_path / "closed" / "b", 1)
    look = os.stat

    def stat(path: str | Path, **how: object) -> os.stat_result:
        if "closed/" in os.fspath(path):
            raise PermissionError(13, os.strerror(13), str(path))
        return look(path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    assert names(tmp_path) == ["a"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ArgumentError, match="cannot be read"):
        watch([str(tmp_path), "--once"])
