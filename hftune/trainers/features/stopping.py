"""A trainer that leaves an evaluation when the run is told to stop, with a checkpoint of the step before it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from hftune import interrupts
from hftune.trainers.preemption import EvaluationStopped


class StoppingMixin:
    """Put before a `Trainer` subclass."""

    def _maybe_log_save_evaluate(
        self: Any, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Overrides the Trainer's, which saves after an evaluation only; that of all ranks ends at the same batch."""
        try:
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)  # type: ignore[misc]
        except EvaluationStopped:
            self._save_checkpoint(model, trial)
            self.control.should_training_stop = True
            self.control.should_evaluate = self.control.should_save = False  # else at the end of the epoch

    def get_train_dataloader(self: Any) -> DataLoader:
        """As the Trainer's; workers do not die of what their parent is told."""
        loader: DataLoader = super().get_train_dataloader()  # type: ignore[misc]
        inner: Any = getattr(loader, "base_dataloader", None)
        for each in (loader, inner):
            if each is not None and each.num_workers:
                each.worker_init_fn = partial(_begin_worker, each.worker_init_fn)
        return loader


def _begin_worker(given: Callable[[int], None] | None, number: int) -> None:
    """What a worker does first; torch has set its own handlers by then."""
    interrupts.keep_working()
    if given is not None:
        given(number)
