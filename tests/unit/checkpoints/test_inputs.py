"""What a run was made from: the values of arguments that name paths, and of no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hftune.checkpoints import integrity
from hftune.checkpoints.inputs import READ, inputs_of, paths_of, record_inputs
from hftune.checkpoints.integrity import checkpoint_fault
from hftune.checkpoints.manifest import write_manifest


def test_which_arguments_name_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hftune's own and those of other tools, with either sign; a folder of the name of another's value is no input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linear").mkdir()
    (tmp_path / "linear" / "rows.txt").write_text("x")
    named = {*READ, "model", "dataset", "train_dataset_path", "val_dataset", "sft_model_path", "ckpt_load_path"}
    for name in (*named, *(name.replace("_", "-") for name in READ)):
        assert [*record_inputs([f"--{name}", "linear"])] == ["linear"], name
    others = (
        "lr_scheduler_type",
        "cache_dir",
        "run_name",
        "optim",
        "lr_decay_style",
        "hub-token",
        "output-dir",
        "save",
    )
    for name in others:
        assert record_inputs([f"--{name}", "linear", f"--{name}=linear", f"--{name}", "./linear"]) == {}, name


def test_the_config_file_is_one_and_names_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("cosine", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.txt").write_text("x")
    (tmp_path / "run.yaml").write_text("lr_scheduler_type: cosine\ntrain_file_dir: [data#5, none]\nseed: 3\n")
    assert [*record_inputs(["--config", "run.yaml"])] == ["run.yaml", "data"]
    assert [*paths_of(["--deepspeed", "zero2", "--reward_funcs", "own.py:f"])][-1] == "own.py"


def test_the_file_of_a_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    argv = ["--callbacks", 'mine.py:Mine{"a": "b,c", "d": 1}', "mine.py:Other", "transformers:EarlyStoppingCallback"]
    assert [*paths_of(argv)] == ["mine.py", "mine.py"]


def test_what_parsed_arguments_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and folders that are there, and what adapters lie upon; no texts, however long, and no names of the Hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("base", "below", "adapter", "plain", "data", "code"):
        (tmp_path / name).mkdir()
    (tmp_path / "q.txt").write_text("")
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": ""}')
    (tmp_path / "plain" / "adapter_config.json").write_text('{"base_model_name_or_path": "base"}')
    write_manifest(tmp_path / "adapter", {"base": {"name": str(tmp_path / "base"), "adapters": ["below"]}})

    def read(**values: object) -> set[str]:
        return {path.resolve().name for path in inputs_of(SimpleNamespace(), SimpleNamespace(**values))}

    assert read(peft_path="adapter,data", other="code", include_path="code") == {"adapter", "data", "base", "below"}
    assert read(models=["plain", "owner/name", "zero2"], questions=["q.txt", "Why? " * 500, "1/2"]) == {
        *("plain", "base", "q.txt")
    }
    assert read(train_file_dir="~/data#5,gone", model=None, deepspeed={"a": 1}) == {"data"}
    assert read(train_file_dir="data@train", validation_file_dir="~/code@test") == {"data", "code"}
    (tmp_path / "my data").mkdir()
    assert read(train_file_dir="data code") == {"data", "code"} and "my data" in read(train_file_dir="my data#3")
    for manifest in ({"base": "x"}, {"base": {"adapters": 5, "name": 7}}):
        write_manifest(tmp_path / "adapter", manifest)
        assert read(model="adapter") == {"adapter"}
    (tmp_path / "plain" / "adapter_config.json").write_text("{")
    assert read(model="plain") == {"plain"}


@pytest.mark.parametrize(
    ("tag", "files", "fault"),
    [
        ("global_step4", ["global_step4/a.pt"], None),
        ("global_step4", [], "DeepSpeed had not finished writing it"),
        ("../other", ["global_step4/a.pt"], "DeepSpeed had not finished writing it"),
        (None, ["global_step4/a.pt"], "DeepSpeed had not finished writing it"),
    ],
)
def test_a_tag_must_lead_to_a_state(tmp_path: Path, tag: str | None, files: list[str], fault: str | None) -> None:
    (tmp_path / "global_step4").mkdir()
    for name in files:
        (tmp_path / name).touch()
    if tag is not None:
        (tmp_path / "latest").write_text(f"{tag}\n")
    assert integrity._without_record(tmp_path) == fault
    (tmp_path / "latest").write_bytes(b"x" * 5000)
    assert "latest" in str(integrity._without_record(tmp_path)), "no file of a tag is so long"


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint_fault(tmp_path / "gone") == "there is no such folder"
    assert integrity._without_record(tmp_path) == "it has no weights"
    (tmp_path / "pytorch_model.bin").touch()
    assert integrity._without_record(tmp_path) is None
