"""What the Trainer pickles next to weights."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers.trainer import TRAINING_ARGS_NAME

from hftune.trainers.features.pickled_arguments import NoPickledArguments
from tests.unit.trainers.features import made_up


def test_no_secret_is_written_even_for_a_moment(tmp_path: Path) -> None:
    run = made_up.run(args={"hub_token": "hf_secret", "should_save": True})
    args = run.args
    with NoPickledArguments().saving_weights(run, tmp_path):
        assert run.args.hub_token == "hf_secret", "the Trainer still uses them"
        torch.save(run.args, tmp_path / TRAINING_ARGS_NAME)
        assert b"hf_secret" not in (tmp_path / TRAINING_ARGS_NAME).read_bytes()
        assert "hftune.json" in pickle.loads(pickle.dumps(run.args))
    assert run.args is args and not (tmp_path / TRAINING_ARGS_NAME).exists()


def test_a_process_that_does_not_save_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / TRAINING_ARGS_NAME).write_text("another process is at it")
    run = made_up.run(args={"should_save": False})
    with NoPickledArguments().saving_weights(run, tmp_path):
        pass
    assert (tmp_path / TRAINING_ARGS_NAME).exists()


def test_arguments_come_back_after_an_error(tmp_path: Path) -> None:
    run = made_up.run(args=vars(SimpleNamespace(should_save=True)))
    args = run.args
    with pytest.raises(KeyError), NoPickledArguments().saving_weights(run, tmp_path):
        raise KeyError
    assert run.args is args
