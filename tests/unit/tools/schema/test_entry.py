"""`hftune schema`: what it prints, and where it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.cli import dispatch
from hftune.errors import ArgumentError
from hftune.publishing.ownership import WRITTEN_NAME
from hftune.tools.schema import entry


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "kept", lambda folder, parts, made: made())
    monkeypatch.setattr(entry, "_made", lambda name: {"title": f"of {name}", "a": "é"})


def test_it_prints_one(capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["schema", "run_sft.py"])
    found = json.loads(capsys.readouterr().out)
    assert found["title"] == "of sft" and found["$comment"].startswith("Written by `hftune schema`, hftune ")


def test_it_writes_one_and_replaces_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        dispatch(["schema", "pipeline", "--output", f"{tmp_path}/a/p.json"])
    assert "of pipeline" in (tmp_path / "a" / "p.json").read_text()
    assert f"pipeline: # yaml-language-server: $schema={tmp_path}/a/p.json" in capsys.readouterr().out
    dispatch(["schema", "sft", f"--output={tmp_path}/a"])
    assert (tmp_path / "a" / "sft.schema.json").is_file()


def test_it_writes_all(tmp_path: Path) -> None:
    dispatch(["schema", "--output", f"{tmp_path}/all"])
    written = {f"{name}.schema.json" for name in entry.NAMES}
    assert {file.name for file in (tmp_path / "all").iterdir()} == {WRITTEN_NAME, *written}
    dispatch(["schema", "--output", f"{tmp_path}/all"])


@pytest.mark.parametrize("mine", ["no JSON", '{"$comment": "Written by `hftune schema`, hftune 1, 00"}'])
def test_files_of_others_stay(mine: str, tmp_path: Path) -> None:
    (tmp_path / "dpo.schema.json").write_text(mine)
    with pytest.raises(ArgumentError, match="hftune did not write it"):
        dispatch(["schema", "--output", str(tmp_path)])
    assert [file.name for file in tmp_path.iterdir()] == ["dpo.schema.json"]
    assert (tmp_path / "dpo.schema.json").read_text() == mine


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs a name"),
        (["sftt"], "no schema of sftt\n.*did you mean sft"),
        (["sft", "dpo"], "takes one name"),
        (["--outptu", "x"], "has no --outptu"),
        (["--output"], "--output needs a value"),
    ],
)
def test_words_that_make_no_sense(words: list[str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        dispatch(["schema", *words])
