"""Folders that are not what was written, and what they lie upon."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from hftune import digests
from hftune.checkpoints.folder_checks import check_recorded, check_recorded_whole
from hftune.checkpoints.integrity import record_contents, write_record
from hftune.checkpoints.manifest import finish_manifest, write_manifest
from hftune.weight_files import fingerprint
from tests.unit.merging.models import store


def said(folder: Path | str) -> str:
    return "; ".join(str(problem) for problem in check_recorded_whole(str(folder), "--model"))


def test_a_finished_folder_is_sound_until_it_changes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "vocab.txt").write_text("a")
    finish_manifest(tmp_path, {"status": "complete"})
    assert said(tmp_path) == ""
    (tmp_path / "vocab.txt").write_text("b")
    (problem,) = check_recorded(tmp_path, "--base")
    assert "vocab.txt" in str(problem) and f"--base {tmp_path}" in str(problem)


def test_contents_behind_an_unchanged_time_are_read(tmp_path: Path) -> None:
    """What a disk damages leaves size and time as they were; so does `cp -p`."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"abc")
    finish_manifest(tmp_path, {"status": "complete"})
    then = file.stat()
    assert said(tmp_path) == ""
    file.write_bytes(b"abd")
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert "model.safetensors has other contents" in said(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "model.safetensors.index.json", "adapter_model.safetensors"])
def test_a_file_that_takes_the_place_of_recorded_ones(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    finish_manifest(tmp_path, {"status": "complete"})
    for note in ("README.md", "answers.json", "evaluation.json", "notes.txt", "training_args.bin"):
        (tmp_path / note).write_text("{}")
    assert said(tmp_path) == ""
    (tmp_path / name).write_text('{"weight_map": {"a": "b.safetensors"}}')
    assert f"{name} is new" in said(tmp_path)
    write_manifest(tmp_path, {"files": {"config.json": None, name: None}})
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert said(tmp_path) == "", "the way out"


def test_a_checkpoint_is_compared_with_its_own_record(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "optimizer.pt").write_text("1")
    write_record(tmp_path, {})
    record_contents(tmp_path)
    (tmp_path / "optimizer.pt").write_text("2")
    assert said(tmp_path) == "", "the optimizer's files are not used here"
    (tmp_path / "config.json").write_text("{ }")
    assert "config.json has other contents" in said(tmp_path)


def test_damaged_json_and_names_of_the_hub(tmp_path: Path) -> None:
    assert said("owner/name") == "" == "; ".join(map(str, check_recorded(None, "--base")))
    (tmp_path / "config.json").write_text("{")
    (problem,) = check_recorded(tmp_path, "--base")
    assert "config.json" in str(problem)


def adapter(folder: Path, base: Path, *below: Path) -> Path:
    store(folder, {"a": torch.full((2,), float(len(folder.name)))})
    (folder / "config.json").unlink(missing_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    parents = [{"folder": str(one), "fingerprint": fingerprint(one)} for one in below]
    recorded = {"name": str(base), "fingerprint": fingerprint(base), "adapters": [str(one) for one in below]}
    finish_manifest(folder, {"base": recorded, "parents": parents, "status": "complete"})
    return folder


def test_an_adapter_is_looked_at_with_all_that_it_lies_upon(tmp_path: Path) -> None:
    base = tmp_path / "base"
    store(base, {"a": torch.ones(2)})
    (base / "tokenizer_config.json").write_text("{}")
    finish_manifest(base, {"status": "complete"})
    first = adapter(tmp_path / "first", base)
    second = adapter(tmp_path / "second", base, first)
    assert said(second) == ""
    (base / "tokenizer_config.json").write_text('{"a": 1}')
    assert "tokenizer_config.json has" in said(second) and [*check_recorded(second, "--model")] == []
    (base / "tokenizer_config.json").write_text("{}")
    store(first, {"a": torch.zeros(2)})
    assert "model.safetensors has other contents" in said(second) and "was trained on the base" in said(second)


def test_another_base_in_the_place_of_the_recorded_one(tmp_path: Path) -> None:
    base = tmp_path / "base"
    store(base, {"a": torch.ones(2)})
    made = adapter(tmp_path / "made", base)
    store(base, {"a": torch.zeros(2)})
    assert f"the adapter in {made} was trained on other weights than those in {base}" in said(made)


def test_a_file_is_read_once_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vocab.txt").write_text("a")
    finish_manifest(tmp_path, {"status": "complete"})
    monkeypatch.setattr(digests, "_SETTLED", 0)
    read: list[Path] = []
    monkeypatch.setattr(digests, "digest", lambda file, real=digests.digest: read.append(file) or real(file))
    assert said(tmp_path) == said(tmp_path) == ""
    assert read == [tmp_path / "vocab.txt"]
    (tmp_path / "vocab.txt").write_text("b")
    assert "other contents" in said(tmp_path) and len(read) == 2
