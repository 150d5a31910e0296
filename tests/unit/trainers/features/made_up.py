"""A run that is made up for the tests of features: no trainer, no model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class Accelerator:
    """Of one process."""

    device = torch.device("cpu")
    optimizer_step_was_skipped = False
    split_batches = dispatch_batches = False

    def reduce(self, value: torch.Tensor, how: str) -> torch.Tensor:
        return value


def run(**given: Any) -> Any:
    """A `Run` of one process on a CPU; `args` are added to those that it has."""
    args = {"device": torch.device("cpu"), "bf16": False, "fp16": False, "world_size": 1, "data_parallel_size": 1}
    args |= {"tensor_parallel_size": 1}
    args |= {"gradient_accumulation_steps": 1, "ignore_data_skip": False, "seed": 7, "data_seed": None}
    made = SimpleNamespace(
        args=SimpleNamespace(**(args | given.pop("args", {}))),
        state=SimpleNamespace(global_step=0, max_steps=10, log_history=[]),
        control=SimpleNamespace(should_training_stop=False, should_evaluate=True, should_save=True),
        accelerator=Accelerator(),
        is_deepspeed_enabled=False,
        callbacks=[],
    )
    made.add_callback = made.callbacks.append
    for name, value in given.items():
        setattr(made, name, value)
    return made
