"""What a trainer is doing, for the watchdog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from hftune.compat.installing import replace_method
from hftune.distributed import phases
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run, plain_model


class EvaluationBatches(TrainerCallback):
    """Each batch of an evaluation is a phase of its own.

    The loop of the Trainer calls this after every batch, whichever trainer overrides `prediction_step`.
    """

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the next one."""
        phases.enter(phases.EVALUATION)


class Phases(Feature):
    """Every phase of a step begins with one assignment, which the watchdog reads."""

    def __init__(self) -> None:
        self._reports_engine_steps = False

    def on_built(self, run: Run) -> None:
        """Report the batches of evaluations."""
        run.add_callback(EvaluationBatches())

    def training(self, run: Run) -> AbstractContextManager[None]:
        """What comes before the first step is timed as well."""
        return phases.timed("starting")

    @contextmanager
    def fetching(self, run: Run) -> Iterator[None]:
        """Waiting for data, then working on them."""
        phases.enter(phases.DATA, run.state.global_step)
        yield
        phases.enter(phases.FORWARD)

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """The forward pass begins."""
        # The engine is made between `on_built` and the first step.
        if not self._reports_engine_steps and run.is_deepspeed_enabled:
            self._reports_engine_steps = True
            report_engine_steps(run.model_wrapped)
        phases.enter(phases.FORWARD, run.state.global_step)

    def after_loss(self, run: Run, loss: torch.Tensor, counted: Any) -> torch.Tensor:
        """While training, what follows the loss is the backward pass."""
        # Evaluations compute losses as well, and no backward pass follows.
        if torch.is_grad_enabled():
            phases.enter(phases.BACKWARD)
        return loss

    def after_step(self, run: Run, inputs: Inputs, loss: torch.Tensor) -> None:
        """The optimizer's step may follow."""
        phases.enter(phases.OPTIMIZER)

    def before_evaluate(self, run: Run) -> None:
        """An evaluation begins."""
        phases.enter(phases.EVALUATION, run.state.global_step)

    def before_save(self, run: Run) -> None:
        """Saving begins."""
        phases.enter(phases.SAVE, run.state.global_step)


def report_engine_steps(engine: Any) -> None:
    """Enter a phase at each step of the optimizer.

    DeepSpeed's engine makes it at the end of accelerate's `backward` (accelerate 1.15), inside a training step.
    """
    step = engine.step

    def reported(_: Any, *args: Any, **kwargs: Any) -> Any:
        phases.enter(phases.OPTIMIZER)
        return step(*args, **kwargs)

    replace_method(engine, "step", reported)


@contextmanager
def reporting_passes(model: nn.Module) -> Iterator[None]:
    """In the block every forward pass of the model is a sign of life: loops of TRL over many of them have no hook.

    Args:
        model: Not wrapped by DeepSpeed or DDP; of an adapter its base, whose `generate` the adapter's calls. Not
            compiled: a hook breaks the graph.
    """
    # On the base: what peft's `generate` calls is not the adapter's own forward.
    handle = plain_model(model).register_forward_pre_hook(lambda module, args: phases.keep_alive())
    try:
        yield
    finally:
        handle.remove()
