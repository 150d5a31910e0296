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
from hftune.tools.reporting.runs import Runs
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
    for number in range(5):
        write_run(tmp_path / f"run{number}", 1)
    monkeypatch.setattr(stages, "MOST_RUNS", 2)
    assert names(tmp_path) and len(names(tmp_path)) == 2
    monkeypatch.setattr(stages, "MOST_FOLDERS", 1)
    assert names(tmp_path) == []


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
    write_run(tmp_path / "sft", 1)
    (run,) = Runs([tmp_path]).read()
    assert run.last_words(2) == ("", [])
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "sft.log").write_text("one\n\ntwo\nthree\n")
    (tmp_path / "logs" / "pt.log").write_text("old\n")
    os.utime(tmp_path / "logs" / "pt.log", (1, 1))
    assert run.last_words(2) == ("logs/sft.log", ["two", "three"]), "its pipeline's"
    (alone,) = Runs([tmp_path / "sft"]).read()
    assert alone.last_words(2) == ("", []), "the pipeline lies outside"
    (tmp_path / "sft" / "run.log").write_text("x" * 100_000 + "\nlast\n")
    assert run.last_words(2) == ("run.log", ["last"]), "its own comes first, and its end alone is read"


def test_a_folder_that_may_not_be_looked_into_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system's calls: the owner of the tests may be one for whom permissions do not count."""
    write_run(tmp_path / "a", 1)
    write_run(tmp_path / "closed" / "b", 1)
    look = os.scandir

    def scandir(path: str | Path) -> object:
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, os.strerror(13), str(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert names(tmp_path) == ["a"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ArgumentError, match="cannot be read"):
        watch([str(tmp_path), "--once"])
