"""Dropout that grows with training, after ERNIEKit."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from hftune.arguments.training import StageArguments
from hftune.logging import notice
from hftune.models.kernels.dropout import Dropouts, find_dropouts
from hftune.models.loading.dropout_fields import Probabilities, outside_config
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run, plain_model


class DropoutWarmup(TrainerCallback):
    """Let dropout grow from 0 at step 0 to its full value at step `--dropout_warmup_steps`, in proportion to steps.

    ERNIEKit (its `LayerwiseDropoutCallback`) does the same, and always scales layer l of L (from 0) by l / L as well,
    which is `--layerwise_dropout` here. A resumed run has the value of its step.

    Args:
        layers: The places of each decoder layer.
        full: The probabilities in the end; those that the model's config takes care of are None.
        args: The steps, and whether layers differ.
    """

    def __init__(self, layers: list[Dropouts], full: Probabilities, args: StageArguments) -> None:
        self.layers, self.full = layers, full
        self.steps, self.layerwise = args.dropout_warmup_steps, args.layerwise_dropout

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Set what holds for the step that begins."""
        self.set(state.global_step)

    def set(self, step: int) -> None:
        """Set what holds after `step` optimizer steps."""
        # 0 steps are no growth, and no divisor.
        share = 1.0 if step >= self.steps else step / self.steps
        for number, places in enumerate(self.layers):
            places.set(self.full.scaled(share * (number / len(self.layers) if self.layerwise else 1.0)))


class DropoutSettings(Feature):
    """Sets the dropouts asked for, whether the architecture has its own or none."""

    def on_built(self, run: Run) -> None:
        """After the stage's own constructor, which may switch dropout off."""
        notice(describe(run.args))
        # Adapters have a dropout of their own, which these flags do not mean.
        plain = plain_model(run.model)
        if left := outside_config(plain.config, run.args):
            run.add_callback(DropoutWarmup(find_dropouts(plain, left), left, run.args))


def describe(args: StageArguments) -> str:
    """One line that says which dropout a run has."""
    asked = {"hidden states": args.hidden_dropout_prob, "attention weights": args.attention_probs_dropout_prob}
    values = ", ".join(f"{value:g} on {name}" for name, value in asked.items() if value is not None)
    growth = f", from 0 over {args.dropout_warmup_steps} steps" if args.dropout_warmup_steps else ""
    depth = "growing with depth (layer l of L: l / L of it)" if args.layerwise_dropout else "the same in every layer"
    return f"dropout: {values}{growth}, {depth}"
