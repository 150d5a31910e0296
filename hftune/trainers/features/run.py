"""What features see of a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from peft import PeftModel
from transformers import TrainerCallback

from hftune.errors import ArgumentError
from hftune.logging import notice

Inputs = dict[str, Any]
"""A micro batch: names and tensors."""


Run: TypeAlias = Any
"""The trainer, as features and the functions of a subject see it; a unit test makes up what they use of it."""


class OnTrainBegin(TrainerCallback):
    """Calls a function when training begins: the state is that of the checkpoint, and no step is made."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self.begin = begin

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """In the order in which callbacks were added."""
        self.begin()


def mean_over_processes(run: Run, counts: torch.Tensor) -> torch.Tensor:
    """What a process divides the sums of its micro batches by; `counts` are its own, of all of them.

    Gradients are averaged over processes: sums over all of them, divided by what they have together, come of this.
    """
    mean: torch.Tensor = run.accelerator.reduce(counts, "mean") if run.args.average_tokens_across_devices else counts
    return mean


def say_if_nothing_learnt(run: Run, chance: float = math.inf) -> None:
    """Say that the training loss ended above where it began, or at what a guess has.

    Args:
        chance: The loss of one that takes all tokens for equally likely, nats.
    """
    losses = [float(entry["loss"]) for entry in run.state.log_history if "loss" in entry]
    if not losses:
        return
    few = max(1, len(losses) // 10)  # single batches differ
    first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
    if last > chance - 0.01:
        said = f"the training loss ended at {last:.4g}, and {chance:.4g} is that of one who guesses among all tokens"
    elif last > first:
        said = f"the training loss ended at {last:.4g}, above the {first:.4g} that it began with"
    else:
        return
    notice(f"{said}; try a lower --learning_rate, and look at the data (hftune preview)")


def plain_model(model: Any) -> Any:
    """The model without the adapter around it."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def refuse_untrained(model: Any, loss: torch.Tensor) -> None:
    """Refuse a loss in training that changes nothing.

    Raises:
        ArgumentError: It has no gradient.
    """
    # As where the layers with an adapter are reached only with a picture, or a layer of its own make drops gradients.
    if model.training and torch.is_grad_enabled() and not loss.requires_grad:
        raise ArgumentError(
            "the loss has no gradient: nothing that is trained has a part in it, or the model's own code drops it",
            place="--use_peft / --lora_target_modules / --freeze_parameters",
            fix="train other parameters, or the model in full",
        )


def complete_metrics(run: Run, metrics: dict[str, float], prefix: str) -> None:
    """Add to what an evaluation returns what upstream has only logged, and perplexity with a loss over tokens."""
    # The last entry of this prefix: TRL logs its own metrics with the loss, and returns only the loss.
    loss = f"{prefix}_loss"
    logged: dict[str, float] = next((entry for entry in reversed(run.state.log_history) if loss in entry), {})
    metrics |= {name: value for name, value in logged.items() if name.startswith(f"{prefix}_")}
    if run.reports_perplexity and loss in metrics:
        metrics[f"{prefix}_perplexity"] = perplexity(metrics[loss])


def perplexity(loss: float) -> float:
    """exp of a mean loss in nats a token."""
    # Above 700 nats exp leaves the range of a float; the loss itself has diverged by then.
    return math.exp(loss) if loss < 700 else math.inf
