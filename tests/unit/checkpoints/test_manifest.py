"""The manifest on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.checkpoints.manifest import (
    is_complete,
    library_versions,
    read_manifest,
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


def test_a_broken_one_is_said(tmp_path: Path) -> None:
    (tmp_path / "hftune.json").write_text('{\n"stage": \n')
    with pytest.raises(ManifestError, match=r"hftune\.json:3"):
        read_manifest(tmp_path)


def test_versions_name_what_shapes_a_result() -> None:
    assert {"python", "torch", "transformers", "trl", "peft", "deepspeed"} <= set(library_versions())
