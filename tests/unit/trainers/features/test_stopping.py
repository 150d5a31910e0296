"""An evaluation that is left ends in a checkpoint, and is not begun again at the end of the epoch."""

from __future__ import annotations

import pytest

from hftune.trainers.features.stopping import Stopping
from hftune.trainers.preemption import EvaluationStopped
from tests.unit.trainers.features import made_up


def test_a_left_evaluation_ends_in_a_checkpoint() -> None:
    saved: list[str] = []
    run = made_up.run(save_checkpoint=lambda: saved.append("checkpoint"))
    with Stopping().ending_step(run):
        raise EvaluationStopped
    assert saved == ["checkpoint"]
    control = run.control
    assert control.should_training_stop and not control.should_evaluate and not control.should_save


def test_one_that_is_not_left_changes_nothing() -> None:
    run = made_up.run()
    with Stopping().ending_step(run):
        pass
    assert not run.control.should_training_stop and run.control.should_evaluate


def test_other_faults_go_through() -> None:
    with pytest.raises(KeyError), Stopping().ending_step(made_up.run()):
        raise KeyError
