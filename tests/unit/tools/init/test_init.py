"""`hftune init`: which words it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.tools import init
from hftune.tools.init import folder


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path, str | None]]:
    """What would have been written."""
    seen: list[tuple[str, Path, str | None]] = []
    monkeypatch.setattr(folder, "write_folder", lambda *given: seen.append(given))
    return seen


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["demo"], ("demo", Path("."), None)),
        (["sft", "there"], ("sft", Path("there"), None)),
        (["--model", "M", "pipeline", "there"], ("pipeline", Path("there"), "M")),
        (["sft", "--model=M"], ("sft", Path("."), "M")),
    ],
)
def test_words(words: list[str], given: tuple, written: list) -> None:
    dispatch(["init", *words])
    assert written == [given]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["deno"], "has no deno\n.*did you mean demo"),
        (["sft", "a", "b"], "writes one folder"),
        (["sft", "--modle", "M"], "has no --modle"),
        (["sft", "--model"], "--model needs a value"),
        (["sft", "--model", "--x"], "--model needs a value"),
        (["--model", "M"], "has no kind"),
    ],
)
def test_words_that_make_no_sense(words: list[str], said: str, written: list) -> None:
    with pytest.raises(ArgumentError, match=said):
        dispatch(["init", *words])
    assert written == []


def test_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["init"])
    page = capsys.readouterr().out
    assert all(f"hftune init {kind} " in page for kind in init.KINDS) and tuple(folder.KINDS) == init.KINDS
