"""Gradients of runs that DeepSpeed does not partition: of their true size, and with their norm in the log."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch


class GradNormMixin:
    """Put before a `Trainer` subclass: at ZeRO stage 0 in float32, DeepSpeed clips and forgets the norm (0.19).

    And it divides a loss by the number of accumulated batches, though it is told not to, where that is the very tensor
    that the model returned: its hook on outputs then runs before the one that says that all is scaled already
    (`_backward_prologue_per_tensor`, 0.19.8).
    """

    def training_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As the Trainer's, with an engine that remembers what it clips."""
        if self.is_deepspeed_enabled and self.args.zero_stage == 0 and "clip_fp32_gradients" not in vars(model):
            model.clip_fp32_gradients = partial(_clip_and_remember, model)
        step: torch.Tensor = super().training_step(model, *args, **kwargs)  # type: ignore[misc]
        return step

    def compute_loss(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As the trainer's; a tensor of its own where DeepSpeed would take it for an output of the model."""
        result = super().compute_loss(model, *args, **kwargs)  # type: ignore[misc]
        if not (self.is_deepspeed_enabled and self.args.zero_stage == 0 and self.model.training):
            return result
        return (result[0].clone(), *result[1:]) if isinstance(result, tuple) else result.clone()


def _clip_and_remember(engine: Any) -> None:
    """What the engine's own method does, with the norm kept where `get_global_grad_norm` looks for it."""
    from deepspeed.runtime.utils import clip_grad_norm_

    norm = clip_grad_norm_(engine.module.parameters(), max_norm=engine.gradient_clipping(), mpu=engine.mpu)
    engine._global_grad_norm = float(norm)
