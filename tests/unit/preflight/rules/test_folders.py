"""What a run may begin with, and where it may write."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from hftune.checkpoints.file_records import record_result
from hftune.checkpoints.manifest import write_manifest
from hftune.preflight.rules.folders import check_folders
from hftune.preflight.rules.resume import check_resume
from hftune.publishing.folder import make_work
from tests.unit.preflight import said as rules_say

problems = partial(rules_say.problems, rules=(check_folders, check_resume))


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
        assert f"hftune did not write: {name}" in problems(tiny_model, *flags, output_dir=tmp_path)


@pytest.mark.parametrize("status", ["running", "interrupted", "complete"])
def test_a_manifest_speaks_for_the_files_that_it_records_alone(tiny_model: Path, tmp_path: Path, status: str) -> None:
    (tmp_path / "config.json").write_text("mine")
    flags = ["--overwrite_output_dir"]
    write_manifest(tmp_path, {"status": status})
    assert "hftune did not write: config.json" in problems(tiny_model, *flags, output_dir=tmp_path)
    write_manifest(tmp_path, {"status": status, "files": record_result(tmp_path)})
    assert problems(tiny_model, *flags, output_dir=tmp_path) == "", "a run of hftune's"


def test_a_run_writes_over_nothing_that_it_reads(tiny_model: Path, tmp_path: Path) -> None:
    """Whatever flags are given: model, adapters, records, and what else an argument names."""
    model, data = tmp_path / "model", tmp_path / "data"
    shutil.copytree(tiny_model, model)
    write_manifest(model, {"status": "complete", "files": record_result(model)})
    shutil.copytree(model, model / "checkpoint-2")
    (model / "checkpoint-2" / "trainer_state.json").write_text('{"global_step": 2}')
    (data / "below").mkdir(parents=True)
    for flags, output in [
        ([], model),
        (["--warm_start", model], model),
        (["--peft_path", model], model),
        (["--warm_start", model / "checkpoint-2"], model),
        (["--train_file_dir", data], data),
        (["--train_file_dir", data], data / "below"),
        (["--validation_file_dir", data], data),
        ([], model / "checkpoint-2"),
        ([], model / "checkpoint-7"),
    ]:
        said = problems(model, "--overwrite_output_dir", *map(str, flags), output_dir=output)
        assert "which is read" in said or "is part of the run" in said, (flags, output, said)


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
    assert ".partial is in the way, and hftune did not make it" in problems(tiny_model, output_dir=tmp_path)


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


DEEPSPEED = {
    "flops_profiler.output_file": {"flops_profiler": {"enabled": True, "output_file": "{}"}},
    "csv_monitor.output_path": {"csv_monitor": {"enabled": True, "output_path": "{}", "job_name": "."}},
    "tensorboard.output_path": {"tensorboard": {"enabled": True, "output_path": "{}"}},
}


@pytest.mark.parametrize("key", DEEPSPEED)
def test_deepspeed_writes_below_the_output_folder_alone(tiny_model: Path, tmp_path: Path, key: str) -> None:
    out = tmp_path / "out"

    def said(path: Path | str) -> str:
        config = json.dumps({"zero_optimization": {"stage": 0}, **DEEPSPEED[key]}).replace("{}", str(path))
        return problems(tiny_model, "--deepspeed", config, output_dir=out)

    assert said(out / "deepspeed" / "x") == ""
    for path in (tmp_path / "thesis.txt", out / ".." / "x", "x", out / "config.json", out / "checkpoint-3" / "x"):
        assert f"--deepspeed: {key}" in said(path), path


def test_a_monitor_of_deepspeeds_without_a_folder(tiny_model: Path, tmp_path: Path) -> None:
    """It would write into the working folder."""
    for block in ({"enabled": True}, {"enabled": True, "output_path": str(tmp_path / "out"), "job_name": "../../x"}):
        config = json.dumps({"csv_monitor": block})
        said = problems(tiny_model, "--deepspeed", config, output_dir=tmp_path / "out")
        assert "--deepspeed: csv_monitor.output_path" in said
    config = json.dumps({"csv_monitor": {"enabled": False, "output_path": "/x"}, "flops_profiler": {"enabled": True}})
    assert problems(tiny_model, "--deepspeed", config, output_dir=tmp_path / "out") == ""
