"""Weights on disk, where an adapter began with a part of the base and where it did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.trainers.features import portable_weights
from hftune.trainers.features.portable_weights import PortableWeights
from tests.unit.trainers.features import made_up


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was rewritten and loaded."""
    found: list[Any] = []
    monkeypatch.setattr(portable_weights, "initial_factors", lambda model: model == "part of the base")
    monkeypatch.setattr(portable_weights, "rewrite_as_plain", lambda model, folder: found.append(("written", folder)))
    monkeypatch.setattr(portable_weights, "load_plain_lora", lambda model, folder: found.append(("loaded", folder)))
    return found


def test_an_adapter_of_a_part_is_written_and_read_as_one_of_all(done: list[Any], tmp_path: Path) -> None:
    run, feature = made_up.run(model="part of the base"), PortableWeights()
    run.state.best_model_checkpoint = "best"
    feature.after_weights(run, tmp_path)
    assert feature.load_weights(run, "last") and feature.load_best(run)
    assert done == [("written", str(tmp_path)), ("loaded", "last"), ("loaded", "best")]
    run.is_deepspeed_enabled = True
    assert not feature.load_best(run), "DeepSpeed's are loaded with the checkpoint"


def test_other_weights_are_left_to_the_trainer(done: list[Any], tmp_path: Path) -> None:
    run, feature = made_up.run(model="plain"), PortableWeights()
    run.state.best_model_checkpoint = "best"
    feature.after_weights(run, tmp_path)
    assert not feature.load_weights(run, "last") and not feature.load_best(run) and done == []
