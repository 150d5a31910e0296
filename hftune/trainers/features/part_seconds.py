"""Where the time of a step goes, part by part, in every log of a trainer that draws its own answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hftune.distributed import phases
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class PartSeconds(Feature):
    """Logs `seconds/PART` of a step, a mean since the last log: generation, rewards, reference, forward, backward, ...

    Of this process. On a GPU a part that waits for the device has the time of what was queued before it.
    """

    def __init__(self) -> None:
        self._steps = 0

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """What was spent before is no part of a step."""
        phases.take_seconds()

    @contextmanager
    def forward(self, run: Run) -> Iterator[None]:
        """Behind the rewards: TRL draws answers within a training step."""
        if torch.is_grad_enabled():
            phases.enter(phases.FORWARD)
        yield

    def on_step_end(self, run: Run, grad_norm: Any) -> None:
        """One more."""
        self._steps += 1

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """Next to the loss."""
        if "loss" not in logs or not self._steps:
            return
        for name, seconds in phases.take_seconds().items():
            logs[f"seconds/{name.replace(' ', '_')}"] = round(seconds / self._steps, 3)
        self._steps = 0
