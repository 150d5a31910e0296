"""Gradients of runs that DeepSpeed does not partition: of their true size, and with their norm in the log."""

from __future__ import annotations

from typing import Any

import torch

from hftune.compat.installing import replace_method
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run


class GradientNorms(Feature):
    """At ZeRO stage 0 in float32, DeepSpeed clips and forgets the norm (0.19).

    And it divides a loss by the number of accumulated batches, in spite of its setting, where that is the very tensor
    that the model returned: its hook on outputs then runs before the one that says that all is scaled already
    (`_backward_prologue_per_tensor`, 0.19.8).
    """

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """Have the engine remember what it clips."""
        # Only the first time: the engine is made after this feature.
        if unpartitioned(run) and "clip_fp32_gradients" not in vars(model):
            replace_method(model, "clip_fp32_gradients", clip_and_remember)

    def after_loss(self, run: Run, loss: torch.Tensor, counted: Any) -> torch.Tensor:
        """A tensor of its own where DeepSpeed would take it for an output of the model."""
        # Evaluation calls no backward, and needs no copy.
        return loss.clone() if unpartitioned(run) and run.model.training else loss


def unpartitioned(run: Run) -> bool:
    """Whether DeepSpeed is at work and leaves optimizer states whole."""
    return run.is_deepspeed_enabled and run.args.zero_stage == 0


def clip_and_remember(engine: Any) -> None:
    """What the engine's own method does, with the norm kept where `get_global_grad_norm` looks for it."""
    from deepspeed.runtime.utils import clip_grad_norm_

    norm = clip_grad_norm_(engine.module.parameters(), max_norm=engine.gradient_clipping(), mpu=engine.mpu)
    engine._global_grad_norm = float(norm)
