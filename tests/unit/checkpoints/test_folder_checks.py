"""Folders of weights that are not what was written."""

from __future__ import annotations

from pathlib import Path

from hftune.checkpoints.folder_checks import folder_problems
from hftune.checkpoints.integrity import write_record
from hftune.checkpoints.manifest import finish_manifest


def test_a_finished_folder_is_sound_until_it_changes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "vocab.txt").write_text("a")
    finish_manifest(tmp_path, {"status": "complete"})
    assert list(folder_problems(tmp_path, "--base", whole=True)) == []
    (tmp_path / "vocab.txt").write_text("b")
    (problem,) = folder_problems(tmp_path, "--base")
    assert "vocab.txt" in str(problem) and f"--base {tmp_path}" in str(problem)


def test_a_checkpoint_is_compared_with_its_own_record(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "optimizer.pt").write_text("1")
    write_record(tmp_path, {})
    (tmp_path / "optimizer.pt").write_text("2")
    assert list(folder_problems(tmp_path, "--base", whole=True)) == [], "the optimizer's files are not used here"
    (tmp_path / "config.json").write_text("{ }")
    assert list(folder_problems(tmp_path, "--base")) == [], "bytes are read on demand"
    (problem,) = folder_problems(tmp_path, "--base", whole=True)
    assert "config.json has other contents" in str(problem)


def test_damaged_json_and_names_of_the_hub(tmp_path: Path) -> None:
    assert list(folder_problems("owner/name", "--base")) == []
    (tmp_path / "config.json").write_text("{")
    (problem,) = folder_problems(tmp_path, "--base")
    assert "config.json" in str(problem)
