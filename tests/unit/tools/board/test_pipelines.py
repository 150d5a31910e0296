"""Pipelines are started, stopped and found running; files are written, and nobody's own replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hftune import child_processes
from hftune.errors import ArgumentError
from hftune.tools.board import pipelines
from hftune.tools.board.app import Board
from hftune.tools.board.pipelines import Pipelines, holder
from tests.unit.tools.board.asking import TOKEN, ask

CONTENT = {"model": "m", "output_dir": "o", "stages": {"sft": {"learning_rate": "1e-3"}}}
# Says what it was started as, then runs until it is asked to stop, as a pipeline does.
RUNNER = """
import signal, sys, time
def stop(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGINT, stop)
print(*sys.argv[1:], flush=True)
if "plan" in sys.argv: sys.exit(3)
while True: time.sleep(0.01)
"""


def until(reached: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipelines]:
    """Pipelines whose command is `RUNNER`."""
    monkeypatch.setattr(child_processes, "python", lambda *words: [sys.executable, "-c", RUNNER, *words])
    found = Pipelines(tmp_path, [])
    yield found
    for one in found.all():
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_written_and_changed(tmp_path: Path) -> None:
    made = Pipelines(tmp_path, [])
    one = made.write("first", CONTENT | {"output_dir": str(tmp_path / "first")})
    assert yaml.safe_load(one.file.read_text())["stages"] == CONTENT["stages"]
    assert one.file == tmp_path / "board" / "first.yaml" and one.folder == tmp_path / "first"
    assert [found.name for found in made.all()] == ["first"] and made.one(one.id) is one
    # Its own earlier version is replaced; one that was edited, or somebody else's, is not.
    again = made.write("first", CONTENT)
    assert again is one and "output_dir: o\n" in one.file.read_text()
    one.file.write_text(one.file.read_text() + "# mine\n")
    with pytest.raises(ArgumentError, match="was edited since"):
        made.write("first", CONTENT)
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "board" / "second.yaml").symlink_to(tmp_path / "secret")
    with pytest.raises(ArgumentError, match="hftune did not write it"):
        made.write("second", CONTENT)
    assert (tmp_path / "secret").read_text() == "kept" and one.file.read_text().endswith("# mine\n")
    assert [found.name for found in made.all()] == ["first"], "a link is none"
    with pytest.raises(LookupError):
        made.one("none")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "a b", "x" * 65, "a\n", "ä", "a\x00", "board"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="cannot be the name"):
        Pipelines(tmp_path, []).write(name, CONTENT)
    assert not [*tmp_path.iterdir()]


def test_files_that_lie_there_do_not_slow_it_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = Pipelines(tmp_path, []), []
    made.write("first", CONTENT)
    original = pipelines.read_yaml
    monkeypatch.setattr(pipelines, "read_yaml", lambda file: read.append(file.stem) or original(file))
    (tmp_path / "board" / "large.yaml").write_text("a:\n" + "- [1, 2, 3]\n" * 2000)
    os.mkfifo(tmp_path / "board" / "pipe.yaml")
    for _ in range(3):
        assert [one.name for one in made.all()] == ["first", "pipe"]
    assert sorted(read) == ["pipe"], "each once, and again where it has changed"
    made.write("first", CONTENT | {"output_dir": "elsewhere"})
    assert read.count("first") == 1 and made.all()[0].folder == Path("elsewhere").absolute()
    with pytest.raises(ArgumentError, match="too large"):
        made.write("huge", CONTENT | {"answers": {"questions": ["why?"] * 5000}})
    monkeypatch.setattr(pipelines, "_MOST", 5)
    for number in range(20):
        (tmp_path / "board" / f"x{number}.yaml").write_text("stages: {}")
    assert len(made.all()) <= 5


def test_a_folder_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "board").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "given.yaml").write_text("stages: {}")
    made = Pipelines(tmp_path / "top", [tmp_path / "given.yaml"])
    with pytest.raises(ArgumentError):
        made.write("x", CONTENT)
    with pytest.raises(ArgumentError, match="is a link"):
        made.act(made.all()[0], "plan")
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_started_and_stopped(made: Pipelines) -> None:
    one = made.write("first", CONTENT)
    assert one.state() == "" and one.runner() is None
    made.act(one, "run")
    until(lambda: f"-m hftune.cli pipeline run {one.file}" in one.log.read_text())
    assert one.state() == "running" and one.process is not None
    for action in ("run", "plan"):
        with pytest.raises(ArgumentError, match="is at work"):
            made.act(one, action)
    with pytest.raises(ArgumentError, match="first runs"):
        made.write("first", CONTENT)
    assert os.getsid(one.process.pid) == one.process.pid, "Ctrl-C in the board's terminal is not its"
    made.act(one, "stop")
    until(lambda: one.state() == "run: stopped, a checkpoint is saved")
    assert one.log.read_text().endswith("saved\n")
    with pytest.raises(ArgumentError, match="does not run"):
        made.act(one, "stop")
    made.act(one, "plan")
    until(lambda: one.state() == "plan: failed with exit code 3")
    assert "pipeline plan" in one.log.read_text() and "saved" not in one.log.read_text()


def test_a_link_in_the_place_of_a_log_is_not_followed(made: Pipelines, tmp_path: Path) -> None:
    one = made.write("first", CONTENT)
    (tmp_path / "kept").write_text("kept")
    one.log.symlink_to(tmp_path / "kept")
    with pytest.raises(ArgumentError):
        made.act(one, "plan")
    assert (tmp_path / "kept").read_text() == "kept"


@pytest.mark.parametrize("plant", [os.mkfifo, Path.mkdir, lambda log: os.link(log.with_name("kept"), log)])
def test_what_stands_in_the_place_of_a_log_is_left(made: Pipelines, plant: Callable[[Path], None]) -> None:
    """A pipe would have the page wait for ever; a second name of somebody's file would have it emptied."""
    one = made.write("first", CONTENT)
    kept = one.log.with_name("kept")
    kept.write_text("kept")
    plant(one.log)
    with pytest.raises(ArgumentError):
        made.act(one, "plan")
    assert kept.read_text() == "kept" and one.process is None


def hold(lock: Path, *words: str) -> subprocess.Popen[str]:
    """A process that has a file open, and these words in its command."""
    program = "import sys; f = open(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.read()"
    found = subprocess.Popen(
        [sys.executable, "-c", program, str(lock), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.stdout is not None and found.stdout.readline() == "open\n"
    return found


def test_who_holds_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, other = tmp_path / "hftune.lock", tmp_path / "other"
    lock.write_text("")
    other.write_text("")
    assert holder(lock) is None and holder(tmp_path / "none") is None
    runner, stranger = hold(lock, "pipeline", "run"), hold(other, "pipeline", "run")
    editor = hold(lock, "notes")
    try:
        for number, expected in ((runner.pid, runner.pid), (stranger.pid, None), (editor.pid, None), (1, None)):
            lock.write_text(f"{number}\n")
            assert holder(lock) == expected
        for wrong in ("x", "-1", "9" * 31, "\x00"):
            lock.write_text(wrong)
            assert holder(lock) is None
        # A pipeline that a terminal has started is found and stopped as well.
        lock.write_text(f"{runner.pid}\n")
        made = Pipelines(tmp_path, [])
        one = made.write("first", CONTENT | {"output_dir": str(tmp_path)})
        assert one.state() == "running"
        sent = []
        monkeypatch.setattr(pipelines.os, "kill", lambda *given: sent.append(given))
        made.act(one, "stop")
        with pytest.raises(ArgumentError, match="is stopping"):  # a second signal would end it without a checkpoint
            made.act(one, "stop")
        assert sent == [(runner.pid, signal.SIGINT)] and one.state() == "stopping"
        (tmp_path / "link").symlink_to(lock)
        assert holder(tmp_path / "link") is None
    finally:
        for process in (runner, stranger, editor):
            process.communicate("")


def test_from_the_page(made: Pipelines, tmp_path: Path) -> None:
    board = Board([tmp_path], [], TOKEN)
    board.found.pipelines = made
    one = made.write("first", CONTENT)
    page = ask(board, f"pipeline/{one.id}")
    assert page.status == 200 and "learning_rate" in page.said and "Start" in page.said
    assert ask(board, f"pipeline/{one.id}", {"action": "remove"}).status == 400
    assert ask(board, "pipeline/none", {"action": "run"}).status == 404
    answer = ask(board, f"pipeline/{one.id}", {"action": "run"})
    assert (answer.status, answer.headers["location"]) == (303, f"/{TOKEN}/pipeline/{one.id}")
    until(lambda: "pipeline run" in ask(board, f"part/pipeline/{one.id}").said)
    assert "running" in ask(board, "").said
    again = ask(board, f"pipeline/{one.id}", {"action": "run"})
    assert again.status == 400 and "is at work" in again.said
    assert ask(board, f"pipeline/{one.id}", {"action": "stop"}).status == 303
    until(lambda: "a checkpoint is saved" in ask(board, f"part/pipeline/{one.id}").said)
