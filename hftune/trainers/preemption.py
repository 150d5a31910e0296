"""A signal to stop becomes a checkpoint and an exit code of its own."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hftune.distributed import ranks
from hftune.logging import notice

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class PreemptionCallback(TrainerCallback):
    """After SIGTERM or SIGUSR1 to any rank, all ranks finish the step, save a checkpoint and stop. A second one kills.

    Attributes:
        stopped: Whether that has happened.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._told: int | None = None
        self._before: dict[int, Any] = {}
        self._group: dist.ProcessGroup | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Listen from now on."""
        if ranks.is_distributed() and ranks.world_size() > 1:
            # On the CPU: asking a GPU every step would make the CPU wait for it every step.
            self._group = dist.new_group(backend="gloo")
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Agree with the other ranks, and stop where one was told to."""
        number = self._agree(self._told or 0)
        if number and not self.stopped:
            self.stopped = True
            notice(f"{signal.Signals(number).name}: saving a checkpoint at step {state.global_step} and stopping")
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._told is not None:  # told twice: a step that never ends must not keep the process
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._told = number

    def _agree(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        if self._group is None:
            return number
        shared = torch.tensor([number])
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._group)
        return int(shared.item())
