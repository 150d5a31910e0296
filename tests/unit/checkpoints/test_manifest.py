"""The manifest on disk."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.checkpoints.manifest import (
    changed_arguments,
    describe_machine,
    finish_manifest,
    is_complete,
    library_versions,
    processor,
    read_manifest,
    same_records,
    trained_before,
    with_history,
    write_manifest,
)
from hftune.errors import ManifestError


def test_written_whole_and_read_back(tmp_path: Path) -> None:
    assert read_manifest(tmp_path / "out") is None
    write_manifest(tmp_path / "out", {"stage": "sft", "status": "running"})
    assert not is_complete(tmp_path / "out")
    write_manifest(tmp_path / "out", {"stage": "sft", "status": "complete", "语言": "中文"})
    assert is_complete(tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["hftune.json"]


def test_all_files_are_recorded_and_those_of_the_result_compared(tmp_path: Path) -> None:
    for name in ("config.json", "README.md", "below/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = finish_manifest(tmp_path, {"status": "complete"})
    assert {*found["written"]} == {"config.json", "README.md", "below/x.txt"} and [*found["files"]] == ["config.json"]
    assert found["files"]["config.json"] == found["written"]["config.json"] and found == read_manifest(tmp_path)
    assert [*finish_manifest(tmp_path, {}, ["below/x.txt"])["files"]] == ["below/x.txt"]


def test_a_broken_one_is_said(tmp_path: Path) -> None:
    (tmp_path / "hftune.json").write_text('{\n"stage": \n')
    with pytest.raises(ManifestError, match=r"hftune\.json:3"):
        read_manifest(tmp_path)


def test_versions_name_what_shapes_a_result() -> None:
    assert {"python", "torch", "transformers", "trl", "peft", "deepspeed"} <= set(library_versions())


def manifest(rate: float = 1e-3, **more: Any) -> dict[str, Any]:
    arguments = {"training": {"learning_rate": rate, "output_dir": Path("out"), "resume_from_checkpoint": rate}}
    return {"command": ["run_sft.py", str(rate)], "stage": "sft", "arguments": arguments, "world_size": 1, **more}


def written(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    write_manifest(folder, about)
    found = read_manifest(folder)
    assert found is not None
    return found


def test_legs_are_kept_oldest_first(tmp_path: Path) -> None:
    first = written(tmp_path / "1", manifest())
    second = written(tmp_path / "2", with_history(manifest(2e-3), first, 4))
    third = with_history(manifest(2e-3), second, 6)
    assert [leg["until_step"] for leg in third["history"]] == [4, 6]
    assert [leg["command"][1] for leg in third["history"]] == ["0.001", "0.002"]
    assert [leg["changed"] for leg in third["history"]] == [{"learning_rate": [1e-3, 2e-3]}, {}]
    assert "arguments" not in third["history"][0] and third["command"] == ["run_sft.py", "0.002"]
    assert changed_arguments({}, manifest()) == {}, "of an earlier version"


def data(fingerprint: str, contents: str = "c", tokens: int = 9, file: str = "data/a.jsonl") -> dict[str, Any]:
    path, name = file.split("/")
    return {
        "data": {"train": {"fingerprint": fingerprint, "files": [file], "rows": 3, "tokens": tokens}},
        "inputs": {path: {"files": {name: [1, 2, contents]}}, "model": {"model": "m"}},
    }


def test_the_same_records() -> None:
    then = data("f")
    assert same_records({}, then), "a checkpoint that does not say"
    assert same_records(then, data("f", "other", 8)), "one fingerprint: nothing else is asked"
    assert same_records(then, data("g")), "another version of hftune"
    assert same_records(then, data("g", file="moved/b.jsonl")), "by what they hold"
    assert not same_records(then, data("g", "other")) and not same_records(then, data("g", tokens=8))
    alone = data("g") | {"inputs": {"data/a.jsonl": {"files": {"a.jsonl": [1, 2, "c"]}}}}
    assert same_records(then, alone), "a file that was named"
    unknown = {**data("g"), "inputs": {}}
    assert not same_records(then, unknown) and same_records(unknown, unknown | data("h", "z") | {"inputs": {}})


def test_held_out_files_that_an_earlier_stage_trained(tmp_path: Path) -> None:
    """The adapter below a merge trained it, and the first leg of a run that was resumed; a teacher is no past."""
    first, merged, other = (str(tmp_path / name) for name in ("sft", "merged", "other"))
    write_manifest(first, data("f", "held") | {"stage": "sft"})
    write_manifest(merged, {"stage": "merge", "base": {"name": "owner/hub"}, "parents": [{"folder": first}]})
    write_manifest(other, data("g", "else") | {"history": [data("h", "held")], "base": {"name": merged}})
    held = {"data": {"eval": {"files": ["new/e.jsonl"]}}, "inputs": {"new": {"files": {"e.jsonl": [1, 2, "held"]}}}}

    def found(**more: Any) -> list[tuple[str, str]]:
        return list(trained_before(held | more))

    assert found(base={"name": merged}) == [("new/e.jsonl", first)]
    assert found(base={"name": other}, parents=[{"folder": other}]) == [("new/e.jsonl", other), ("new/e.jsonl", first)]
    teacher = {"teachers": [{"name": merged}], "parents": [{"folder": merged}]}
    assert found(**teacher) == [] == found(base={"name": "owner/hub"}) == list(trained_before({}))
    divided = data("f", "held")
    divided["data"]["eval"] = divided["data"]["train"]
    write_manifest(tmp_path / "divided", divided)
    assert found(base={"name": str(tmp_path / "divided")}) == [], "by the same seed"
    unknown = held | {"inputs": {}, "base": {"name": merged}}
    assert list(trained_before(unknown)) == [], "the same names say nothing"


def test_what_shapes_the_last_bits_is_there() -> None:
    found = describe_machine()
    assert found["threads"] == torch.get_num_threads() and found["instructions"] and found["processor"]
    assert ("gpu" in found) == torch.cuda.is_available()


def test_the_processor_s_name(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU: 3 GHz\nmodel name\t: Other\n")
    assert processor(file) == "Some CPU: 3 GHz"
    file.write_text("processor\t: 0\n")
    assert processor(file) == platform.machine()
    assert processor(tmp_path / "gone") == (platform.processor() or platform.machine())
