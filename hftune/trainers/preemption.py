"""A signal to stop becomes a checkpoint and an exit code of its own."""

from __future__ import annotations

import signal
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from hftune import interrupts
from hftune.distributed import ranks
from hftune.logging import notice


class EvaluationStopped(Exception):
    """An evaluation was left because the run was told to stop; raised on all ranks at the same batch."""


class PreemptionCallback(TrainerCallback):
    """After a signal to any rank, all ranks finish the step, save a checkpoint and stop.

    An evaluation is not waited for: it ends at its next batch. A checkpoint that is being written is completed, and no
    other one written.

    Attributes:
        stopped: Whether that has happened.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._group: dist.ProcessGroup | None = None
        self._listens, self._number = False, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Signals are noted from now on, also those that a script has not asked for, in a notebook say."""
        if ranks.is_distributed() and ranks.world_size() > 1:
            # On the CPU: asking a GPU every step would make the CPU wait for it every step.
            self._group = dist.new_group(backend="gloo")
        self._listens = interrupts.listen(exits=False) is not None
        # From here on a signal waits for the end of the step.
        interrupts.defer(True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Agree with the other ranks, and stop where one was told to."""
        if not self.stopped and self.agreed_signal():
            self._say(f"saving a checkpoint at step {state.global_step} and stopping")
            control.should_save = True
            control.should_training_stop = True
            control.should_evaluate = False

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave an evaluation.

        Raises:
            EvaluationStopped: A rank was told to stop.
        """
        if not self.stopped and self.agreed_signal():
            self._say(f"the evaluation at step {state.global_step} is left out")
            raise EvaluationStopped

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint that has just been written is the last one."""
        if not self.stopped and self.agreed_signal():
            self._say(f"stopping, checkpoint-{state.global_step} is saved")
            control.should_training_stop = True

    def end(self) -> None:
        """Nothing is left that a signal could spoil; give back what `on_train_begin` took."""
        if self._listens:
            interrupts.stop_listening()
            self._listens = False

    def agreed_signal(self) -> int:
        """The signal that any rank was told to stop by, 0 for none; every rank must ask."""
        number = interrupts.stop_signal()
        if self._group is not None:
            shared = torch.tensor([number])
            dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._group)
            # The largest: ranks that were not told have 0.
            number = int(shared.item())
        self._number = number
        return number

    def _say(self, what: str) -> None:
        self.stopped = True
        notice(f"{signal.Signals(self._number).name}: {what}")
