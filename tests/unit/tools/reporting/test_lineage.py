"""The chain behind a model, and what no longer holds in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hftune.checkpoints.inputs import record_inputs
from hftune.checkpoints.manifest import COMPLETE, write_manifest
from hftune.errors import ManifestError
from hftune.tools.reporting.lineage import all_faults, draw, trace
from hftune.tools.reporting.lineage import main as lineage
from hftune.weight_files import fingerprint
from tests.unit.tools.pipeline.files import finish, model, steps


@pytest.fixture
def road(tmp_path: Path) -> Path:
    """pt, sft, and a reward model that sft did not see, with merges."""
    model(tmp_path / "base")
    for name in ("pt", "sft", "rm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jsonl").write_text(f"{name}\n")
    stages = "".join(f"  {name}: {{train_file_dir: {tmp_path}/{name}}}\n" for name in ("pt", "sft", "rm"))
    text = f"model: {tmp_path}/base\noutput_dir: {tmp_path}/out\nshared: {{use_peft: true}}\nstages:\n{stages}"
    for step in steps(tmp_path, text):
        file = f"{tmp_path}/{step.script}/{step.script}.jsonl"
        about = {"train": {"files": [file], "rows": 9, "used": 8, "dropped": {"bad": 1}, "trained_tokens": 1234}}
        finish(step, **({"data": about} if step.script != "merge" else {}), kind="adapter", metrics={"eval_loss": 1.5})
    return tmp_path


def test_the_chain_is_drawn(road: Path) -> None:
    text = draw(trace(road / "out" / "sft-merged"))
    assert f"├─ base: {road}/out/pt-merged" in text and "8 of 9 records, 1 dropped, 1,234 trained tokens" in text
    assert text.endswith("all fingerprints hold") and "eval_loss 1.5" in text and "rm.jsonl" not in text
    assert text.count("pt.jsonl") == text.count("sft.jsonl") == 1


def test_the_legs_of_a_resumed_run_are_shown_and_checked(road: Path) -> None:
    first, second = road / "first.jsonl", road / "second.jsonl"

    def leg(file: Path) -> dict[str, Any]:
        file.write_text(file.name)
        about = {"train": {"files": [str(file)], "fingerprint": file.name, "rows": 3, "used": 3}}
        return {"data": about, "inputs": record_inputs(["--train_file_dir", str(file)])}

    before = leg(first) | {"until_step": 4, "changed": {"learning_rate": [0.1, 0.2], "save_steps": [1, 2]}}
    about = {"stage": "sft", "status": COMPLETE, "kind": "full", "history": [before], **leg(second)}
    (road / "resumed").mkdir()
    write_manifest(road / "resumed", about)
    text = draw(trace(road / "resumed"))
    assert f"until step 4: train: {first} (3 of 3 records)" in text
    assert "until step 4: learning_rate 0.1 (then 0.2)\n" in text and text.endswith("all fingerprints hold")
    assert trace(road / "resumed")["before_resuming"][0]["until_step"] == 4
    first.write_text("other")
    assert any(str(first) in fault for fault in all_faults(trace(road / "resumed")))
    write_manifest(road / "resumed", about | {"history": [before | {"data": about["data"]}]})
    assert draw(trace(road / "resumed")).count(str(second)) == 1, "the same records are shown once"


def test_answers_come_from_the_models_that_were_asked(road: Path) -> None:
    asked = road / "out" / "sft-merged"
    manifest = {"stage": "answers", "status": COMPLETE, "parents": [{"folder": str(asked), "fingerprint": "other"}]}
    write_manifest(road / "answers", manifest)
    text = draw(trace(road / "answers"))
    assert f"└─ asked: {asked}" in text
    assert f"the weights in {asked} are not those that were used" in text


@pytest.mark.parametrize(
    "file", ["pt/pt.jsonl", "base/model.safetensors", "out/pt/model.safetensors", "out/sft/config.json"]
)
def test_one_altered_byte_anywhere_is_found(road: Path, file: str) -> None:
    (road / file).write_bytes(b"?" + (road / file).read_bytes()[1:])
    origin = trace(road / "out" / "sft-merged")
    assert len(all_faults(origin)) >= 1 and any(file.split("/")[-2] in fault for fault in all_faults(origin))
    assert "no longer hold" in draw(origin)


def test_a_teacher_is_a_parent(road: Path) -> None:
    """One of hftune's is traced further; one that is the base as well stays the base; a changed one is said."""
    base, teacher = str(road / "base"), str(road / "out" / "sft-merged")
    seen = [{"name": name, "fingerprint": fingerprint(name)} for name in (teacher, base, "owner/hub")]
    (road / "student").mkdir()
    about = {"stage": "distill", "status": COMPLETE, "kind": "full", "base": {"name": base}, "teachers": seen}
    write_manifest(road / "student", about)
    found = trace(road / "student")
    roles = [(parent["role"], parent["name"]) for parent in found["parents"]]
    assert roles == [("base", base), ("teacher", teacher), ("teacher", "owner/hub")]
    assert f"teacher: {teacher}  [" in draw(found)
    assert found["parents"][1]["parents"] and not found["parents"][1]["faults"]
    (road / "out" / "sft-merged" / "model.safetensors").write_bytes(b"other")
    assert any("not those that were used" in fault for fault in trace(road / "student")["parents"][1]["faults"])


def test_as_json(road: Path) -> None:
    command = [sys.executable, "-m", "hftune.cli", "lineage", str(road / "out" / "sft-merged"), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [parent["role"] for parent in found["parents"]] == ["base", "adapter"]
    assert found["parents"][1]["trained_on"][0]["used"] == 8


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no hftune\.json"):
        trace(tmp_path)


@pytest.mark.parametrize("wrong", ['"parents": [{"role": "adapter"}]', '"kind": "merged", "verified": 3'])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_manifest_of_another_shape_is_one_message(tmp_path: Path, wrong: str, flags: list[str]) -> None:
    """Somebody else's folder, or an edited one: it ended in a traceback, or a figure that is none was shown."""
    (tmp_path / "hftune.json").write_text(f'{{"stage": "merge", "status": "complete", {wrong}}}')
    with pytest.raises(ManifestError, match=r"have another shape than those that hftune writes \(\w+Error: \S"):
        lineage([str(tmp_path), *flags])


def test_from_another_folder_than_the_run_was_started_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of a manifest are relative to where its command was started, wherever somebody asks."""
    work, output = tmp_path / "work", tmp_path / "work" / "outputs" / "sft"
    output.mkdir(parents=True)
    (work / "a.jsonl").write_text("a")
    model(work / "base")
    monkeypatch.chdir(work)
    base = {"name": "base", "fingerprint": fingerprint("base")}
    about = {"stage": "sft", "status": COMPLETE, "base": base, "inputs": record_inputs(["--train_file_dir", "a.jsonl"])}
    write_manifest("outputs/sft", about)
    assert all_faults(trace("outputs/sft")) == [] and "base: base" in draw(trace("outputs/sft"))
    for place, folder in ((tmp_path, "work/outputs/sft"), (output, ".")):
        monkeypatch.chdir(place)
        assert all_faults(trace(folder)) == []
    monkeypatch.chdir(tmp_path)
    (work / "a.jsonl").write_text("b")
    assert any("work/a.jsonl has other contents" in fault for fault in all_faults(trace("work/outputs/sft")))
    work.rename(tmp_path / "moved")
    (tmp_path / "moved" / "a.jsonl").write_text("a")
    assert all_faults(trace("moved/outputs/sft")) == []
