"""Seconds of each part of a step, in the log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.distributed import phases
from hftune.trainers.features.answers import PartSeconds
from tests.unit.trainers.features import made_up


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Seconds that pass only when they are told to."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(phases, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(phases, "_entered", 100.0)
    monkeypatch.setattr(phases, "_seconds", {})
    phases.take_seconds()
    return clock


def spend(clock: Any, name: str, seconds: float) -> None:
    phases.enter(name)
    clock.now += seconds / 2
    phases.keep_alive()  # what shows that it moves begins no other part
    clock.now += seconds / 2


def test_a_mean_over_the_steps_since_the_last_log(clock: Any) -> None:
    feature, run = PartSeconds(), made_up.run()
    run.state.global_step = 3  # resumed
    phases.enter(phases.PREPARATION)
    clock.now += 50
    feature.before_train(run, None)
    for _ in range(2):
        feature.before_step(run, None, {})
        spend(clock, phases.GENERATION, 3.0)
        spend(clock, phases.OLD, 1.0)
        spend(clock, phases.GENERATION, 1.0)
        run.state.global_step += 1
    logs = {"loss": 1.0}
    feature.before_log(run, logs)
    assert logs == {
        "loss": 1.0, "seconds/generation": 4.0, "seconds/old_log-probabilities": 1.0, "seconds/preparation": 0.0,
    }  # fmt: skip
    phases.enter(phases.GENERATION)
    # The part at hand goes on, and what was said is not said again.
    clock.now += 2.0
    spend(clock, phases.BACKWARD, 6.0)
    evaluation: dict[str, float] = {"eval_loss": 1.0}
    feature.before_log(run, evaluation)
    assert evaluation == {"eval_loss": 1.0}
    run.state.global_step += 1
    logs = {"loss": 1.0}
    feature.before_log(run, logs)
    assert {name: value for name, value in logs.items() if value} == {
        "loss": 1.0, "seconds/generation": 2.0, "seconds/backward": 6.0,
    }  # fmt: skip
