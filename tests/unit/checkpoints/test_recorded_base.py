"""An adapter on another base than its own is refused where its weights are known, and said where its name is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hftune.checkpoints.folder_checks import check_recorded_base
from hftune.checkpoints.manifest import write_manifest
from hftune.logging import notices
from hftune.weight_files import fingerprint
from tests.unit.merging.models import store


@pytest.fixture
def base(tmp_path: Path) -> Path:
    store(tmp_path / "base", {"a": torch.ones(2)})
    return tmp_path / "base"


def adapter(folder: Path, name: str | None, recorded: str | None) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": name}))
    if recorded is not None:
        write_manifest(folder, {"base": {"name": "its own", "fingerprint": recorded}})
    return str(folder)


def test_by_the_fingerprint(base: Path, tmp_path: Path) -> None:
    own = adapter(tmp_path / "own", "another name", fingerprint(base))
    assert not list(check_recorded_base(str(base), own, "--flag")) and notices() == []
    other = adapter(tmp_path / "other", base.name, "0123456789abcdef")
    (problem,) = check_recorded_base(str(base), other, "--flag")
    assert f"trained on other weights than those in {base}" in str(problem) and "its own" in str(problem)


@pytest.mark.parametrize("recorded", [None, "hub:maker/model"])
def test_by_the_name_where_no_weights_are_known(base: Path, tmp_path: Path, recorded: str | None) -> None:
    same = adapter(tmp_path / "same", f"/elsewhere/{base.name}", recorded)
    unnamed = adapter(tmp_path / "unnamed", None, recorded)
    for folder in (same, unnamed):
        assert not list(check_recorded_base(str(base), folder, "--flag")) and notices() == []
    other = adapter(tmp_path / "other", "maker/model", recorded)
    assert not list(check_recorded_base(str(base), other, "--flag"))
    assert notices() == [f"the adapter in {other} names the base maker/model, here it is used on {base}"]


def test_a_base_of_the_hub_is_compared_by_name(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "adapter", "maker/model", "0123456789abcdef")
    assert not list(check_recorded_base("other/model", folder, "--flag")) and notices() == []
    assert (
        not list(check_recorded_base("other/thing", folder, "--flag")) and "names the base maker/model" in notices()[0]
    )
