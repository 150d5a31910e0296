"""What stands on a command line, and the local paths that it becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.names.translate import Entry
from hftune.arguments.raw_arguments import COMMAND_LINE
from hftune.errors import ArgumentError
from hftune.logging import notices
from hftune.stores import located, modelscope, objects
from hftune.stores.located import chosen_hub, files_of_model
from tests.unit.stores.test_registry import registry


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are /copies/NAME; what ModelScope has is /scope/KIND/NAME."""
    monkeypatch.setattr(objects, "fetch", lambda url, flag, chosen: Path("/copies") / url.rpartition("/")[2])

    def download(name: str, kind: str, flag: str, revision: str | None = None, offline: bool = False) -> Path:
        return Path("/scope") / kind / name / (revision or "") / ("offline" if offline else "")

    monkeypatch.setattr(modelscope, "download", download)
    monkeypatch.setattr(located, "origins", {})
    monkeypatch.delenv(located.HUB_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "data").mkdir(parents=True)


def values(hub: str | None = None, **given: Any) -> dict[str, Any]:
    """What arguments become, each of one value."""
    entries = [Entry(name, [value], COMMAND_LINE) for name, value in given.items()]
    entries += [Entry("hub", [hub], COMMAND_LINE)] if hub else []
    return {entry.name: entry.values[0] for entry in located.located(entries) if entry.name != "hub"}


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("model_name_or_path", "s3://b/m/tiny", "/copies/tiny"),
        ("train_file_dir", "s3://b/a.jsonl#500,own/data hf://datasets/o/n", "/copies/a.jsonl#500,own/data /copies/n"),
        ("train_file_dir", ["gs://b/a.jsonl", "b.jsonl"], ["/copies/a.jsonl", "b.jsonl"]),
        ("adapter", "zh=S3://b/lora", "zh=/copies/lora"),
        ("chat_template", "s3://b/t.jinja", "/copies/t.jinja"),
        ("train_file_dir", "ftp://host/a.jsonl", "ftp://host/a.jsonl"),
        ("train_file_dir", '{"a": "s3://b/c"}', '{"a": "s3://b/c"}'),
        ("system_prompt", "see s3://b/a.jsonl", "see s3://b/a.jsonl"),
        ("model_name_or_path", "owner/name", "owner/name"),
        ("max_steps", 3, 3),
    ],
)
def test_urls_become_paths(name: str, given: Any, found: Any) -> None:
    assert values(**{name: given}) == {name: found}


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("model_name_or_path", "Qwen/Qwen3-0.6B", "/scope/model/Qwen/Qwen3-0.6B"),
        ("train_file_dir", "o/one#50, o/two,own/data", "/scope/dataset/o/one#50, /scope/dataset/o/two,own/data"),
        ("train_file_dir", "./o/n,a/b/c,/o/n,a.jsonl", "./o/n,a/b/c,/o/n,a.jsonl"),
        ("chat_template", "o/n", "o/n"),
        ("run_name", "o/n", "o/n"),
    ],
)
def test_names_are_looked_up_on_modelscope(name: str, given: str, found: str) -> None:
    assert values("modelscope", **{name: given}) == {name: found}
    assert values("huggingface", **{name: given}) == {name: given}


def test_manifests_know_what_was_given() -> None:
    values("modelscope", model_name_or_path="s3://me:pw-1234567@b/m", train_file_dir="o/n,own/data")
    assert located.origins == {"/copies/m": "s3://me:***@b/m", "/scope/dataset/o/n": "o/n"}


def test_revisions_are_of_models_and_offline_is_asked_for() -> None:
    more = {"tokenizer_name_or_path": "o/t", "train_file_dir": "o/d", "peft_path": "o/l"}
    found = values("modelscope", model_name_or_path="o/m", model_revision="v1", offline="True", **more)
    assert found["model_name_or_path"] == "/scope/model/o/m/v1/offline"
    assert found["tokenizer_name_or_path"] == "/scope/model/o/t/v1/offline"
    assert (found["train_file_dir"], found["peft_path"]) == ("/scope/dataset/o/d/offline", "/scope/model/o/l/offline")
    assert values("modelscope", model_name_or_path="o/m", offline="False")["model_name_or_path"] == "/scope/model/o/m"


def test_a_folder_here_wins(tmp_path: Path) -> None:
    (tmp_path / "own" / "set@2").mkdir()
    given = {"model_name_or_path": "own/data", "train_file_dir": "own/set@2"}
    assert values("modelscope", **given) == given


def test_a_part_of_a_data_set_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"read whole, without :CONFIG or @SPLIT: o/n@test"):
        values("modelscope", train_file_dir="o/n@test")


def test_pages_of_the_web_are_downloaded_first() -> None:
    with pytest.raises(ArgumentError, match="page of the web") as found:
        values(train_file_dir="own/data,https://host/a.jsonl")
    assert found.value.place == "--train_file_dir" and "curl -LO https://host/a.jsonl" in str(found.value.fix)


def test_results_stay_on_a_disk() -> None:
    with pytest.raises(ArgumentError, match="written to a disk"):
        values(output_dir="s3://b/out")
    assert values(output_dir="out") == {"output_dir": "out"}


def test_the_flag_counts_then_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (chosen_hub(None), chosen_hub("modelscope")) == ("huggingface", "modelscope")
    monkeypatch.setenv(located.HUB_VARIABLE, "modelscope")
    assert (chosen_hub(None), chosen_hub("huggingface")) == ("modelscope", "huggingface")
    monkeypatch.setenv(located.HUB_VARIABLE, "gitee")
    with pytest.raises(ArgumentError, match="gitee is no hub") as found:
        chosen_hub(None)
    assert found.value.place == located.HUB_VARIABLE
    with pytest.raises(ArgumentError, match="modelscop is no hub") as found:
        chosen_hub("modelscop")
    assert found.value.place == "--hub" and "did you mean modelscope?" in str(found.value.fix)


def test_of_a_model_folder_one_format_is_copied() -> None:
    names = ["config.json", "model.safetensors", "pytorch_model.bin", "checkpoint-5/model.safetensors", "runs/a"]
    assert files_of_model([*names, "additional_chat_templates/a.jinja"]) == [
        *("config.json", "model.safetensors", "additional_chat_templates/a.jinja")
    ]
    assert files_of_model(["config.json", "pytorch_model.bin"]) == ["config.json", "pytorch_model.bin"]


ASKS = {"columns": {"prompt": "ask", "response": "answer"}}


def test_names_of_a_registry(tmp_path: Path) -> None:
    folder = registry(
        tmp_path, a={"file_name": "a.json"}, b={"file_name": "b.json"} | ASKS, c={"file_name": "c"} | ASKS
    )
    assert values(dataset_dir=folder, train_file_dir="a, own/data, x.json") == {
        "dataset_dir": folder,
        "train_file_dir": f"{folder}/a.json, own/data, x.json",
    }
    both = values(dataset_dir=folder, train_file_dir="b#5,c", validation_file_dir="c")
    assert both["train_file_dir"] == f"{folder}/b.json#5,{folder}/c" and both["validation_file_dir"] == f"{folder}/c"
    assert both["columns"] == '{"instruction": "ask", "output": "answer"}'
    assert values(dataset_dir=folder, train_file_dir="b", columns="prompt=ask")["columns"] == "prompt=ask"
    with pytest.raises(ArgumentError, match="different names of columns"):
        values(dataset_dir=folder, train_file_dir="a,b")


def test_a_registry_in_data_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert values(train_file_dir="a")["train_file_dir"] == "a"
    registry(tmp_path / "data", a={"file_name": "a.json"})
    assert values(train_file_dir="a,own/data")["train_file_dir"] == "data/a.json,own/data"
    assert "a: data/a.json, as data/dataset_info.json says" in notices()


@pytest.mark.parametrize("given", ["REMOTE:o/n", "s3://b/reg"])
def test_a_registry_is_a_folder_here(given: str) -> None:
    with pytest.raises(ArgumentError, match="read from a folder here") as found:
        values(dataset_dir=given, train_file_dir="a")
    assert found.value.place == "--dataset_dir"


def test_a_registry_may_name_what_lies_elsewhere(tmp_path: Path) -> None:
    folder = registry(tmp_path, a={"ms_hub_url": "o/n"}, b={"file_name": "s3://b/b.jsonl"})
    found = values("modelscope", dataset_dir=folder, train_file_dir="a,b")
    assert found["train_file_dir"] == "/scope/dataset/o/n,/copies/b.jsonl"
