"""What has become of the inputs of a run, and of checkpoints that other tools wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hftune.checkpoints import integrity
from hftune.checkpoints.file_records import changed_input
from hftune.checkpoints.integrity import checkpoint_fault
from hftune.digests import record_files
from hftune.weight_files import fingerprint
from tests.unit.merging.models import store


def test_a_model_is_known_by_its_weights(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    store(folder, {"a": torch.ones(2)})
    recorded = {"model": fingerprint(folder)}
    assert list(changed_input(str(folder), recorded)) == []
    store(folder, {"a": torch.zeros(2)})
    assert list(changed_input(str(folder), recorded)) == [f"the model in {folder} is another one"]
    gone = str(tmp_path / "gone")
    assert list(changed_input(gone, recorded)) == list(changed_input(gone, {"files": {}})) == [f"{gone} is gone"]


def test_records_are_known_by_their_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text("1\n")
    recorded = {"files": record_files({"a.jsonl": folder / "a.jsonl"})}
    assert list(changed_input(str(folder), recorded, whole=True)) == []
    (folder / "b.jsonl").write_text("2\n")
    assert list(changed_input(str(folder), recorded)) == [f"{folder / 'b.jsonl'} is new"]
    (folder / "b.jsonl").unlink()
    (folder / "a.jsonl").write_text("333\n")
    assert list(changed_input(str(folder), recorded)) == [f"{folder / 'a.jsonl'} has 4 bytes, not 2"]
    assert list(changed_input(str(folder / "a.jsonl"), recorded)) == [f"{folder / 'a.jsonl'} has 4 bytes, not 2"]


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
