"""State of processes that share a model is not taken for that of processes that each hold all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.checkpoints.engine_files import open_engine
from hftune.checkpoints.integrity import RECORD_NAME, engine_folder
from hftune.errors import ManifestError

OWN = ["zero_pp_rank_0_mp_rank_00_optim_states.pt"]


@pytest.mark.parametrize(
    ("files", "record"),
    [
        ([*OWN, "zero_pp_rank_0_mp_rank_01_optim_states.pt"], {}),
        ([*OWN, "layer_0_expert_3_mp_rank_00_model_states.pt"], {}),
        (OWN, {"expert_parallel_size": 2}),  # under ZeRO-3 the names do not tell
    ],
)
def test_pieces_of_a_shared_model_are_not_put_together(
    tmp_path: Path, files: list[str], record: dict[str, int]
) -> None:
    folder = tmp_path / "checkpoint-2" / "global_step2"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).touch()
    (folder.parent / RECORD_NAME).write_text(json.dumps({"files": {}, **record}))
    with pytest.raises(ManifestError, match="tensor or expert parallel processes") as problem:
        open_engine(folder)
    assert "its whole weights are next to it" in str(problem.value)


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
