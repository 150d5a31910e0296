"""Where DeepSpeed's engine wrote: by its tag, without one, and tags that lead elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.checkpoints.integrity import engine_folder, read_tag
from hftune.errors import ManifestError


@pytest.mark.parametrize("tag", ["latest", "latest_universal"])
def test_the_tag_names_the_folder(tmp_path: Path, tag: str) -> None:
    for name in ("global_step1", "global_step2"):
        (tmp_path / name).mkdir()
    (tmp_path / tag).write_text("global_step1\n")
    assert engine_folder(tmp_path) == tmp_path / "global_step1"


def test_without_a_tag(tmp_path: Path) -> None:
    assert engine_folder(tmp_path) is None
    (tmp_path / "global_step2").mkdir()
    assert engine_folder(str(tmp_path)) == tmp_path / "global_step2"


@pytest.mark.parametrize("name", ["..", "../other", "/etc", "", "a\x00b", "x" * 5000])
def test_a_tag_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "latest").write_text(name)
    with pytest.raises(ManifestError):
        read_tag(tmp_path / "latest")


def test_links_are_refused(tmp_path: Path) -> None:
    outside, checkpoint = tmp_path / "outside", tmp_path / "checkpoint-1"
    outside.mkdir()
    checkpoint.mkdir()
    (checkpoint / "global_step1").symlink_to(outside)
    with pytest.raises(ManifestError):
        engine_folder(checkpoint)
    (checkpoint / "latest").write_text("global_step1")
    with pytest.raises(ManifestError):
        engine_folder(checkpoint)
