"""What `hftune watch` prints, on a terminal and elsewhere, and that nothing in it is obeyed."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from hftune.checkpoints.manifest import COMPLETE, INTERRUPTED
from hftune.cli import dispatch
from hftune.errors import ArgumentError, ManifestError
from hftune.tools.watching import entry as following
from hftune.tools.watching.entry import follow, last_answers, show
from hftune.tools.watching.runs import Runs
from tests.unit.tools.watching.files import log_line, write_run

HOSTILE = "\x1b[2J\x1b]0;title\x07\u202egpj[bold]x[/bold]"


def printed(*folders: Path, width: int = 100, **terminal: object) -> str:
    said = io.StringIO()
    show([str(folder) for folder in folders], Console(file=said, width=width, **terminal))  # type: ignore[arg-type]
    return said.getvalue()


def test_it_is_shown_once(tmp_path: Path) -> None:
    write_run(tmp_path / "pt", 30, COMPLETE)
    write_run(tmp_path / "sft", 10)
    text = printed(tmp_path)
    rows = text.splitlines()
    assert rows[0].split() == ["run", "state", "step", "loss", "speed", "left"]
    assert rows[1].split()[:2] == ["pt", "finished"] and "30/30" in rows[1]
    assert rows[2].split()[:2] == ["sft", "running"] and rows[2].split()[-4:] == ["50", "tokens/s", "40", "s"]
    assert "step 10/30, loss 0.3, 50 tokens/s, 40 s left, lr 0.001, grad norm 1, 1.5 GB" in text
    assert "Loss" in text and "█" in text and "3 → 0.3" in text
    assert printed(tmp_path / "sft").count("running") == 1, "of one run no table"


def test_what_was_said_last(tmp_path: Path) -> None:
    write_run(tmp_path / "rl", 4)
    asked = [[{"role": "user", "content": f"Q{step}?"}] for step in (1, 2, 3)]
    rows = [
        {"step": step, "prompt": prompt, "completion": f"A{step}", "rewards": {"r": 1}}
        for step, prompt in enumerate(asked, start=1)
    ]
    (tmp_path / "rl" / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rl" / "checkpoint-2").mkdir()
    (tmp_path / "rl" / "checkpoint-2" / "hftune_checkpoint.json").write_text("{}")
    text = printed(tmp_path)
    assert "step 3  r 1" in text and "? Q3?" in text and "> A3" in text and "Q2" in text and "Q1" not in text
    assert "checkpoints: 2" in text
    found = {"questions": ["Who?", "Why?", "When?"], "answers": {"base": ["b1", "b2", "b3"], "sft": ["s1", "s2", "s3"]}}
    (tmp_path / "rl" / "completions.jsonl").unlink()
    (tmp_path / "rl" / "answers.json").write_text(json.dumps(found))
    text = printed(tmp_path)
    assert "> s1" in text and "> s2" in text and "s3" not in text and "b1" not in text


@pytest.mark.parametrize(
    "wrong",
    ["[]", '{"questions": 1, "answers": 2}', '{"questions": ["q"], "answers": {}}', '{"answers": {"a": ["b"]}}', "{"],
)
def test_answers_of_another_shape_are_left_out(tmp_path: Path, wrong: str) -> None:
    write_run(tmp_path / "sft", 4)
    (tmp_path / "sft" / "answers.json").write_text(wrong)
    (tmp_path / "sft" / "completions.jsonl").write_text(f'{{"step": 1}}\n{wrong}\n')
    assert last_answers(Runs([tmp_path]).read()[0]) == []


def test_why_a_run_does_not_train(tmp_path: Path) -> None:
    write_run(tmp_path / "sft", 4, INTERRUPTED)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "sft.log").write_text("error: the disk is full\n")
    text = printed(tmp_path)
    assert "stopped" in text and "logs/sft.log" in text and "error: the disk is full" in text
    write_run(tmp_path / "sft", 4)
    assert "the disk is full" not in printed(tmp_path)


def test_nothing_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a1B2" * 9)
    write_run(tmp_path / "other", 1, COMPLETE)
    write_run(tmp_path / f"sft{HOSTILE}", 4, INTERRUPTED)
    folder = tmp_path / f"sft{HOSTILE}"
    row = {"step": HOSTILE, "prompt": HOSTILE, "completion": HOSTILE + "hf_" + "a1B2" * 9, "rewards": {HOSTILE: 1}}
    (folder / "completions.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "run.log").write_text(HOSTILE + "\n")
    for terminal in ({}, {"force_terminal": True, "color_system": None}):
        text = printed(tmp_path, folder, width=300, **terminal)
        assert not {"\x1b", "\x07", "\u202e"} & {*text} and "\\x1b[2J" in text
        assert "step \\x1b" in text and "hf_a1B2" not in text, "a secret"
        assert "[bold]x[/bold]" in text
    (folder / "hftune.json").write_text('{"\x1b[2J": ' + "\x1b")
    assert "\x1b" not in printed(folder)


def test_elsewhere_lines_follow_a_run_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "sft", 3)
    console = Console(file=io.StringIO())
    thread = threading.Thread(target=follow, args=([str(tmp_path / "sft")], 0.02, console))
    thread.start()
    _until(lambda: "step 3/30" in said(capsys))
    with (tmp_path / "sft" / "progress.jsonl").open("a") as stream:
        stream.write(log_line(4, time.time() - 8))
    _until(lambda: "step 4/30" in said(capsys))
    assert thread.is_alive()
    write_run(tmp_path / "sft", 30, COMPLETE)
    thread.join(10)
    assert not thread.is_alive()
    lines = said(capsys).splitlines()
    assert lines[-1] == "sft: step 30/30, loss 0.1, 50 tokens/s, lr 0.001, grad norm 1, 1.5 GB (finished)"
    assert len(lines) == len({*lines}) == 3, "each line once"


SAID: list[str] = []


def said(capsys: pytest.CaptureFixture[str]) -> str:
    SAID.append(capsys.readouterr().out)
    return "".join(SAID)


def _until(reached: object) -> None:
    end = time.monotonic() + 10
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_terminal_has_a_picture_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "sft", 3)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100, height=40, _environ={"TERM": "xterm"})

    def sleep(seconds: float) -> None:
        write_run(tmp_path / "sft", 30, COMPLETE)

    monkeypatch.setattr(following.time, "sleep", sleep)
    follow([str(tmp_path / "sft")], 1.0, console)
    text = shown.getvalue()
    assert text.index("step 3/30") < text.index("step 30/30") and "\x1b[1A" in text, "over itself"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "sft", 10)
    dispatch(["watch", str(tmp_path), "--once"])
    assert "step 10/30" in capsys.readouterr().out
    dispatch(["watch", "--help"])
    assert "hftune watch FOLDER" in capsys.readouterr().out
    for argv, match in (
        (["--once"], "needs a folder"),
        ([str(tmp_path / "sf")], "did you mean|there is no folder"),
        ([str(tmp_path), "--twice"], "has no --twice"),
        ([str(tmp_path), "--every", "0"], "takes seconds"),
        ([str(tmp_path), "--every=x"], "takes seconds"),
    ):
        with pytest.raises(ArgumentError, match=match):
            dispatch(["watch", *argv])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ManifestError, match="no run has begun"):
        dispatch(["watch", str(tmp_path / "empty"), "--once"])
