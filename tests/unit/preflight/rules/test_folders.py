"""What a run may begin with, and where it may write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hftune.checkpoints.manifest import write_manifest
from hftune.publishing.folder import make_work
from tests.unit.preflight.said import problems


def test_a_finished_folder_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    write_manifest(tmp_path, {"status": "running"})
    assert problems(tiny_model, output_dir=tmp_path) == ""
    write_manifest(tmp_path, {"status": "complete"})
    assert "already holds a finished run" in problems(tiny_model, output_dir=tmp_path)
    assert problems(tiny_model, "--overwrite_output_dir", output_dir=tmp_path) == ""


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "README.md", "tokenizer.json", "adapter_config.json", "critic"]
)
def test_files_of_somebody_else_are_kept(tiny_model: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    for flags in ([], ["--overwrite_output_dir"]):
        assert f"holds {name}, which a run would replace" in problems(tiny_model, *flags, output_dir=tmp_path)
    write_manifest(tmp_path, {"status": "running"})
    assert problems(tiny_model, output_dir=tmp_path) == "", "a run of hftune's that did not end"


@pytest.mark.parametrize("status", [None, "running"])
def test_a_work_folder_of_somebody_else_is_said_before_training(
    tiny_model: Path, tmp_path: Path, status: str | None
) -> None:
    if status is not None:
        write_manifest(tmp_path, {"status": status})
    make_work(tmp_path / ".partial")
    assert problems(tiny_model, output_dir=tmp_path) == "", "a killed run of hftune's left it"
    shutil.rmtree(tmp_path / ".partial")
    (tmp_path / ".partial").mkdir()
    (tmp_path / ".partial" / "thesis").write_text("mine")
    assert "holds .partial, which a run would replace" in problems(tiny_model, output_dir=tmp_path)


@pytest.mark.parametrize("name", ["train.log", "nohup.out", "notes.txt", "checkpoint-5/model.safetensors", "runs/a"])
def test_files_that_a_run_adds_to(tiny_model: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    assert problems(tiny_model, output_dir=tmp_path) == ""


def test_a_disk_without_room_for_the_result(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (tiny_model / "model.safetensors").stat().st_size
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("hftune.publishing.disk.shutil.disk_usage", lambda _: usage._replace(free=(1 << 24) + weights))
    assert problems(tiny_model, output_dir=tmp_path) == ""
    monkeypatch.setattr("hftune.publishing.disk.shutil.disk_usage", lambda _: usage._replace(free=(1 << 24) + 9))
    assert "the result needs 0.02 GB" in problems(tiny_model, output_dir=tmp_path)
    assert problems(tiny_model, "--use_peft", output_dir=tmp_path) == ""


def test_output_folders_that_cannot_be(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for name in ("file", "file/below"):
        assert "a file stands where a folder is needed" in problems(tiny_model, output_dir=tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine" and len([*tmp_path.iterdir()]) == 1
    (tmp_path / "circle").symlink_to("circle")
    assert "circle" in problems(tiny_model, output_dir=tmp_path / "circle")


@pytest.mark.parametrize("head", ["score", "steps", "causal_lm"])
def test_a_reward_model_is_not_trained_to_write(tiny_model: Path, tmp_path: Path, head: str) -> None:
    reward = tmp_path / "rm"
    shutil.copytree(tiny_model, reward)
    write_manifest(reward, {"status": "complete", "head": head, "base": {"name": str(tiny_model)}})
    message = problems(reward)
    refused = f"{reward} is a reward model" in message and f"give --model_name_or_path {tiny_model};" in message
    assert refused == (head != "causal_lm")
