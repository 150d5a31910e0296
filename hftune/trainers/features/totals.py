"""Figures over a whole run, also where it was interrupted: mean loss, tokens, seconds, and what was not logged yet.

The Trainer (transformers 5.23) begins all of them anew when it resumes, and takes the losses since the last log from
one process alone.
"""

from __future__ import annotations

import time
from typing import Any

from hftune.distributed import ranks
from hftune.trainers.features.feature import Feature, load_state
from hftune.trainers.features.run import OnTrainBegin, Run


class _TakeUp(OnTrainBegin):
    """A class of its own: of two callbacks of one class transformers warns at every start."""


class Totals(Feature):
    """Keeps the totals in checkpoints, and takes them up again.

    Attributes:
        seconds_before: Of training before an interruption.
    """

    def __init__(self) -> None:
        self.seconds_before = 0.0
        self._loss_from = 0  # the step from which on losses were added up
        self._checkpoint: str | None = None
        self._began: float | None = None

    def on_built(self, run: Run) -> None:
        """The Trainer has no place between its zeros and the first step but this callback."""
        run.add_callback(_TakeUp(lambda: self.restore(run)))

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """Know what to resume from."""
        self._checkpoint = checkpoint

    def seconds(self) -> float:
        """Of training so far, those before an interruption included."""
        return self.seconds_before + (time.time() - self._began if self._began else 0.0)

    def restore(self, run: Run) -> None:
        """When training begins, the Trainer has set everything to 0: what all features have kept is taken up."""
        self._began = time.time()
        # A checkpoint without a state: the mean loss is that of the steps from here on.
        self._loss_from = run.state.global_step
        if self._checkpoint is not None:
            load_state(run, self._checkpoint)

    def state(self, run: Run) -> dict[str, Any]:
        """Sums of all steps, and of each process those of the steps that no log has yet."""
        return {
            "from_step": self._loss_from,
            "loss": run._total_loss_scalar,
            "pending": ranks.gathered_objects(float(run._tr_loss)),
            "logged_step": run._globalstep_last_logged,
            "seconds": self.seconds(),
            "tokens": getattr(run, "_total_train_tokens", 0),
        }

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Go on adding."""
        if not saved:
            return
        pending = saved["pending"]
        alike = len(pending) == ranks.world_size()  # then each takes its own, and the sums are the same to the bit
        self._loss_from, self.seconds_before = saved["from_step"], saved["seconds"]
        run._total_loss_scalar, run._globalstep_last_logged = saved["loss"], saved["logged_step"]
        run._tr_loss += pending[ranks.rank()] if alike else sum(pending) / len(pending)
        if hasattr(run, "_total_train_tokens"):  # TRL's trainers
            run._total_train_tokens = saved["tokens"]

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """The mean loss at the end is that of all steps and of all processes."""
        if "train_runtime" in logs and "train_loss" in logs:
            # The Trainer has just added what this process alone has not logged.
            logged = run._total_loss_scalar - run._tr_loss.item()
            total = logged + float(run.accelerator.reduce(run._tr_loss.detach().clone(), "mean"))
            logs["train_loss"] = total / max(run.state.global_step - self._loss_from, 0.001)
