"""The proof is asked for once, by training or by an evaluation before it."""

from __future__ import annotations

from typing import Any

from hftune.trainers.features.isolation_proof import IsolationProof
from tests.unit.trainers.features import made_up


def test_once_a_run() -> None:
    asked: list[Any] = []
    run, feature, inputs = made_up.run(prove_isolation=asked.append), IsolationProof(), {"input_ids": 1}
    assert feature.before_prediction(run, "engine", inputs) is inputs
    feature.before_step(run, "engine", inputs)
    assert asked == ["engine"]
    other = IsolationProof()
    other.before_step(run, "other", inputs)
    assert asked == ["engine", "other"], "another run proves it anew"
