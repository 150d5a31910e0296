"""Folders of `save_to_disk` are opened as they are, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from hftune.data.storage import open_folder
from hftune.digests import Damaged

DATA = Dataset.from_dict({"input_ids": [[1, 2], [3]], "labels": [[-100, 2], [3]], "position_ids": [[0, 1], [900]]})


def test_a_sound_folder(tmp_path: Path) -> None:
    DATA.save_to_disk(tmp_path / "a", num_shards=2)
    for validate in (True, False):
        found = open_folder(tmp_path / "a", validate=validate)
        assert found["input_ids"][:] == [[1, 2], [3]] and found.cache_files


def test_no_such_folder(tmp_path: Path) -> None:
    DatasetDict({"train": DATA}).save_to_disk(tmp_path / "dict")
    for folder in (tmp_path / "none", tmp_path / "dict", tmp_path):
        with pytest.raises(Damaged, match=r"has no state\.json"):
            open_folder(folder)


@pytest.mark.parametrize("info", ["", "{", "[]", '{"features": 3}', '{"features": {"a": {"_type": "Nothing"}}}'])
def test_columns_that_make_no_sense(tmp_path: Path, info: str) -> None:
    DATA.save_to_disk(tmp_path / "a")
    (tmp_path / "a" / "dataset_info.json").write_text(info)
    with pytest.raises(Damaged):
        open_folder(tmp_path / "a")


def test_a_state_without_its_files(tmp_path: Path) -> None:
    DATA.save_to_disk(tmp_path / "a")
    state = json.loads((tmp_path / "a" / "state.json").read_text())
    state["_data_files"][0]["filename"] = "../a/data-00000-of-00001.arrow"
    (tmp_path / "a" / "state.json").write_text(json.dumps(state))
    with pytest.raises(Damaged, match="not in the folder"):
        open_folder(tmp_path / "a")
