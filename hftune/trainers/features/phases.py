"""A trainer that says what it is doing, for the watchdog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import TrainerCallback

from hftune.distributed import phases


class EvaluationBatches(TrainerCallback):
    """Each batch of an evaluation is a phase of its own.

    The loop of the Trainer calls this after every batch, whichever trainer overrides `prediction_step`.
    """

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the next one."""
        phases.enter(phases.EVALUATION)


class PhaseMixin:
    """Put before a `Trainer` subclass, outermost: every phase of a step begins with one assignment."""

    _engine_step_heard = False

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(EvaluationBatches())

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.train`, timed."""
        with phases.timed("starting"):
            return super().train(*args, **kwargs)  # type: ignore[misc]

    def get_batch_samples(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's."""
        phases.enter(phases.DATA, self.state.global_step)
        samples = super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        phases.enter(phases.FORWARD)
        return samples

    def training_step(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the Trainer's."""
        if not self._engine_step_heard and self.is_deepspeed_enabled:
            self._hear_engine_step()
        phases.enter(phases.FORWARD, self.state.global_step)
        step: Callable[..., torch.Tensor] = super().training_step  # type: ignore[misc]
        loss = step(*args, **kwargs)
        phases.enter(phases.OPTIMIZER)
        return loss

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; while training, what follows it is the backward pass."""
        result = super().compute_loss(*args, **kwargs)  # type: ignore[misc]
        if torch.is_grad_enabled():
            phases.enter(phases.BACKWARD)
        return result

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the Trainer's."""
        phases.enter(phases.EVALUATION, self.state.global_step)
        metrics: dict[str, float] = super().evaluate(*args, **kwargs)  # type: ignore[misc]
        return metrics

    def save_model(self: Any, *args: Any, **kwargs: Any) -> None:
        """As the Trainer's."""
        phases.enter(phases.SAVE, self.state.global_step)
        super().save_model(*args, **kwargs)  # type: ignore[misc]

    def _save_checkpoint(self: Any, *args: Any, **kwargs: Any) -> None:
        phases.enter(phases.SAVE, self.state.global_step)
        super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]

    def _hear_engine_step(self: Any) -> None:
        """DeepSpeed's engine makes the optimizer's step at the end of accelerate's `backward` (accelerate 1.15)."""
        self._engine_step_heard = True
        engine = self.model_wrapped
        step = engine.step

        def heard(*args: Any, **kwargs: Any) -> Any:
            phases.enter(phases.OPTIMIZER)
            return step(*args, **kwargs)

        engine.step = heard


@contextmanager
def passes_heard(model: nn.Module) -> Iterator[None]:
    """In the block every forward pass of the model is a sign of life: loops of TRL over many of them have no hook.

    Args:
        model: Not wrapped by DeepSpeed or DDP; of an adapter its base, whose `generate` the adapter's calls. Not
            compiled: a hook breaks the graph.
    """
    plain = model.get_base_model() if isinstance(model, PeftModel) else model
    handle = plain.register_forward_pre_hook(lambda module, args: phases.alive())
    try:
        yield
    finally:
        handle.remove()
