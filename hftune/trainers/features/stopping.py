"""An evaluation is left when the run is told to stop, with a checkpoint of the step before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run
from hftune.trainers.preemption import EvaluationStopped


class Stopping(Feature):
    """The Trainer saves after an evaluation only; that of all ranks ends at the same batch."""

    @contextmanager
    def ending_step(self, run: Run) -> Iterator[None]:
        """Save what was trained, and stop."""
        try:
            yield
        except EvaluationStopped:
            run.save_checkpoint()
            run.control.should_training_stop = True
            run.control.should_evaluate = run.control.should_save = False  # else at the end of the epoch
