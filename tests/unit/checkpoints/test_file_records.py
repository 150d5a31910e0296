"""What a result and an input are, and what is told of one that has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hftune.checkpoints.file_records import changed_input, is_model, record_input, result_files


def test_a_result_is_what_the_next_stage_reads(tmp_path: Path) -> None:
    kept = {"config.json", "model.safetensors", "tokenizer.json"}
    left = {"hftune.json", "README.md", "trainer_state.json", "training_args.bin", "run.log", ".hidden", "samples.json"}
    left |= {"answers.json", "report.html", "log.jsonl", "curve.png", "cache.lock"}
    for name in kept | left:
        (tmp_path / name).write_text("x")
    (tmp_path / "checkpoint-1").mkdir()
    assert set(result_files(tmp_path)) == kept


def test_files_of_an_input(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / ".cache").mkdir()
    for name in ("a.jsonl", "deep/b.jsonl", ".cache/c.jsonl", ".d"):
        (folder / name).write_text(name)
    os.mkfifo(folder / "pipe")
    (folder / "broken").symlink_to(tmp_path / "nowhere")
    recorded = record_input(str(folder))
    assert recorded is not None and set(recorded["files"]) == {"a.jsonl", "deep/b.jsonl"}
    assert record_input(str(tmp_path / "nowhere")) is None
    assert list(changed_input(str(folder), recorded, whole=True)) == []
    (folder / "a.jsonl").write_text("changed")
    (folder / "new.jsonl").write_text("x")
    said = list(changed_input(str(folder), recorded))
    assert len(said) == 2 and "a.jsonl" in said[0] and said[1] == f"{folder / 'new.jsonl'} is new"
    (folder / "a.jsonl").write_text("333\n")
    single = {"files": {"a.jsonl": recorded["files"]["a.jsonl"]}}
    assert list(changed_input(str(folder / "a.jsonl"), single)) == [f"{folder / 'a.jsonl'} has 4 bytes, not 7"]
    assert list(changed_input(str(tmp_path / "gone"), single)) == [f"{tmp_path / 'gone'} is gone"]


@pytest.mark.parametrize("config", ["config.json", "adapter_config.json"])
def test_a_model_is_known_by_its_fingerprint(tmp_path: Path, config: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    assert not is_model(model)
    (model / config).write_text("{}")
    (model / "model.gguf").write_bytes(b"1")
    recorded = record_input(str(model))
    assert is_model(model) and recorded is not None and set(recorded) == {"model"}
    assert list(changed_input(str(model), recorded)) == []
    (model / "model.gguf").write_bytes(b"2")
    assert list(changed_input(str(model), recorded)) == [f"the model in {model} is another one"]
    assert list(changed_input(str(tmp_path / "gone"), recorded)) == [f"{tmp_path / 'gone'} is gone"]
