"""The file of a checkpoint that says which documents have been trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.trainer import TRAINER_STATE_NAME

from hftune.errors import ArgumentError, ManifestError
from hftune.trainers.features.corpora import LOADER_STATE_NAME, read_state, refuse_state
from hftune.trainers.features.state import state_errors


def test_read_with_the_steps_made(tmp_path: Path) -> None:
    (tmp_path / TRAINER_STATE_NAME).write_text(json.dumps({"global_step": 12}))
    with pytest.raises(ArgumentError, match=f"no {LOADER_STATE_NAME}, so it is not known"):
        read_state(tmp_path)
    (tmp_path / LOADER_STATE_NAME).write_text(json.dumps({"kind": "blocks", "blocks": 3}))
    assert read_state(tmp_path) == ({"kind": "blocks", "blocks": 3}, 12)


def test_other_data_are_refused(tmp_path: Path) -> None:
    refuse_state(str(tmp_path))
    (tmp_path / LOADER_STATE_NAME).write_text("{}")
    with pytest.raises(ArgumentError, match="tokenised or streamed data"):
        refuse_state(str(tmp_path))


@pytest.mark.parametrize("error", [KeyError("blocks"), TypeError("x"), ValueError("x"), AttributeError("x")])
def test_faults_in_it_are_one_message(tmp_path: Path, error: Exception) -> None:
    said = f"{LOADER_STATE_NAME} is no state of a run: {type(error).__name__}"
    with pytest.raises(ManifestError, match=said), state_errors(tmp_path / LOADER_STATE_NAME):
        raise error
    with pytest.raises(OSError), state_errors(tmp_path):
        raise OSError
