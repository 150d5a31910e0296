"""What `hftune watch` prints, on a terminal and elsewhere, and that nothing in it is obeyed."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from hftune.checkpoints.manifest import COMPLETE, INTERRUPTED
from hftune.cli import dispatch
from hftune.errors import ArgumentError, ManifestError
from hftune.tools import watching
from hftune.tools.watching import follow
from tests.unit.tools.reporting.files import log_line, write_run

HOSTILE = "\x1b[2J\x1b]0;title\x07\u202egpj[bold]x[/bold]"
ENDED = "sft: step 30/30, loss 0.1, 50 tokens/s, lr 0.001, grad norm 1, 1.5 GB (finished)"


Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    def once(*folders: Path) -> str:
        dispatch(["watch", *map(str, folders), "--once"])
        return capsys.readouterr().out

    return once


def test_it_is_shown_once(tmp_path: Path, printed: Printed) -> None:
    write_run(tmp_path / "pt", 30, COMPLETE)
    write_run(tmp_path / "sft", 10)
    (tmp_path / "sft" / "checkpoint-2").mkdir()
    (tmp_path / "sft" / "checkpoint-2" / "hftune_checkpoint.json").write_text("{}")
    rows = printed(tmp_path).splitlines()
    assert rows[0].startswith("pt: step 30/30") and rows[0].endswith("(finished)")
    assert rows[1] == "sft: step 10/30, loss 0.3, 50 tokens/s, 40 s left, lr 0.001, grad norm 1, 1.5 GB (running)"
    assert rows[2:4] == ["", "sft"] and rows[4].startswith("Loss ") and rows[4].endswith("▁  3.0000 → 0.3000")
    assert rows[-1] == "checkpoints: 2"
    assert printed(tmp_path / "sft").count("sft") == 1, "of one run no heading"


def test_why_a_run_does_not_train(tmp_path: Path, printed: Printed) -> None:
    write_run(tmp_path / "sft", 4, INTERRUPTED)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "sft.log").write_text("error: the disk is full\n")
    text = printed(tmp_path)
    assert "stopped" in text and "logs/sft.log:\nerror: the disk is full" in text
    write_run(tmp_path / "sft", 4)
    assert "the disk is full" not in printed(tmp_path)
    os.utime(tmp_path / "sft" / "progress.jsonl", (time.time() - 200,) * 2)
    assert "nothing was written for 3:20" in printed(tmp_path) and "the disk is full" in printed(tmp_path)


def test_nothing_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a1B2" * 9)
    folder = tmp_path / f"sft{HOSTILE}"
    write_run(folder, 4, INTERRUPTED)
    (folder / "run.log").write_text(HOSTILE + "hf_" + "a1B2" * 9 + "\n")
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, color_system=None, width=300, _environ={"TERM": "xterm"})
    monkeypatch.setattr(watching, "_ended", _once())
    follow([str(tmp_path)], 0.0, console)
    for text in (printed(tmp_path), shown.getvalue()):
        assert "\x1b[2J" not in text and not {"\x07", "\u202e"} & {*text} and "\\x1b[2J" in text
        assert "[bold]x[/bold]" in text and "hf_a1B2" not in text, "a secret"
    (folder / "hftune.json").write_text('{"\x1b[2J": ' + "\x1b")
    assert "\x1b" not in printed(folder)


def _once() -> object:
    """In the place of `_ended`: one picture is enough."""
    answers = iter([False])
    return lambda found: next(answers, True)


def _grow(folder: Path) -> object:
    """In the place of `sleep`: a step more, and at last the end."""
    later = iter([lambda: None, lambda: _append(folder), lambda: write_run(folder, 30, COMPLETE)])
    return lambda seconds: next(later, lambda: None)()


def _append(folder: Path) -> None:
    with (folder / "progress.jsonl").open("a") as stream:
        stream.write(log_line(4, time.time() - 8))


def test_elsewhere_lines_follow_a_run_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "sft", 3)
    monkeypatch.setattr(watching.time, "sleep", _grow(tmp_path / "sft"))
    follow([str(tmp_path / "sft")], 1.0, Console(file=io.StringIO()))
    lines = capsys.readouterr().out.splitlines()
    assert "step 3/30" in lines[0] and "step 4/30" in lines[1] and lines[2:] == [ENDED], "each line once"


def test_a_terminal_has_a_picture_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "sft", 3)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100, height=40, _environ={"TERM": "xterm"})
    monkeypatch.setattr(watching.time, "sleep", _grow(tmp_path / "sft"))
    follow([str(tmp_path / "sft")], 1.0, console)
    text = shown.getvalue()
    assert text.index("step 3/30") < text.index("step 30/30") and "\x1b[1A" in text, "over itself"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "sft", 10)
    dispatch(["watch", "--help"])
    assert "hftune watch FOLDER" in capsys.readouterr().out
    for argv, match in (
        (["--once"], "required: folders"),
        ([str(tmp_path / "sf")], "did you mean|there is no folder"),
        ([str(tmp_path), "--twice"], "unrecognized arguments: --twice"),
        ([str(tmp_path), "--every", "0"], "a number from 0.1 to"),
        ([str(tmp_path), "--every=x"], "a number from 0.1 to"),
    ):
        with pytest.raises(ArgumentError, match=match):
            dispatch(["watch", *argv])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ManifestError, match="no run has begun"):
        dispatch(["watch", str(tmp_path / "empty"), "--once"])
