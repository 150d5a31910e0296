"""An evaluation that is left ends in a checkpoint, and is not begun again at the end of the epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hftune import interrupts
from hftune.trainers.features.stopping import StoppingMixin, _begin_worker
from hftune.trainers.preemption import EvaluationStopped


class Plain:
    """A Trainer that evaluates, and is told to stop in the middle."""

    stops = True

    def __init__(self) -> None:
        self.saved: list[Any] = []
        self.control = SimpleNamespace(should_training_stop=False, should_evaluate=True, should_save=True)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.stops:
            raise EvaluationStopped

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.saved.append((model, trial))


class Trainer(StoppingMixin, Plain):
    """With the mixin."""


def test_a_left_evaluation_ends_in_a_checkpoint() -> None:
    trainer = Trainer()
    trainer._maybe_log_save_evaluate(0.0, None, "model", None, 1, None, 0.0, learning_rate=1e-3)
    assert trainer.saved == [("model", None)]
    control = trainer.control
    assert control.should_training_stop and not control.should_evaluate and not control.should_save


def test_one_that_is_not_left_changes_nothing() -> None:
    trainer = Trainer()
    trainer.stops = False
    trainer._maybe_log_save_evaluate(0.0, None, "model", None, 1, None, 0.0, learning_rate=1e-3)
    assert not trainer.saved and not trainer.control.should_training_stop and trainer.control.should_evaluate


def test_workers_keep_working_and_do_what_they_were_given(monkeypatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(interrupts, "keep_working", lambda: done.append("keeps working"))
    _begin_worker(done.append, 3)
    _begin_worker(None, 4)
    assert done == ["keeps working", 3, "keeps working"]
