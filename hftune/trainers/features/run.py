"""What features see of a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from peft import PeftModel
from transformers import TrainerCallback, TrainerControl, TrainerState

from hftune.arguments.training import StageArguments
from hftune.errors import ArgumentError
from hftune.logging import notice

Inputs = dict[str, Any]
"""A micro batch: names and tensors."""


class Run(Protocol):
    """What features use of a trainer: a test makes one up of these.

    Attributes:
        model: As it was given to the trainer; an adapter around it or not.
        model_wrapped: What a training step calls: DeepSpeed's engine, DDP, or the model.
    """

    args: Any  # the stage's own class: mypy does not see the fields that these inherit from transformers
    state: TrainerState
    control: TrainerControl
    accelerator: Any
    model: Any
    model_wrapped: Any
    optimizer: Any
    lr_scheduler: Any
    processing_class: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    is_deepspeed_enabled: bool
    model_accepts_loss_kwargs: bool
    compute_loss_func: Any
    current_gradient_accumulation_steps: int
    label_smoother: Any
    neftune_noise_alpha: float | None
    hub_model_id: str | None

    # Of `StageTrainer`.
    features: Any  # `Features`, which knows this class
    groups: Any  # `Group`s of the optimizer
    mixture: Any  # a `Mixture`; None: all records once an epoch
    reports_perplexity: bool
    sequence_group: Any  # a `SequenceGroup` of `distributed.sequence_parallel`; None where no rows are shared

    # Private attributes of transformers' Trainer that features read or set; no public ones say the same (5.17-5.23).
    _tr_loss: torch.Tensor
    _total_loss_scalar: float
    _globalstep_last_logged: int
    _train_batch_size: int
    _created_lr_scheduler: bool

    # Of TRL's trainers: what is logged next, and tokens trained so far.
    _metrics: dict[str, dict[str, list[float]]]
    _total_train_tokens: int
    _tp_size: int

    # Of TRL's trainers that generate: micro batches so far, those of the answers at hand, how often each is trained,
    # samples, and what rewards are asked with.
    _step: int
    _buffered_inputs: list[Inputs] | None
    num_iterations: int
    _logs: dict[str, Any]
    _tokenizer: Any
    eos_token_ids: list[int]
    reward_func_names: list[str]
    num_generations: int
    max_completion_length: int
    mask_truncated_completions: bool

    # Of `OnlineTrainer`; the second of training and evaluation.
    rollout: Inputs | None
    sums: dict[str, Any]  # `MetricSums`

    def own_scores(self, rows: int) -> torch.Tensor:
        """Of `OnlineTrainer`: scores of this process's last answers, so many rows."""

    # Methods of `StageTrainer`, and public ones of transformers' Trainer.
    upstream_sampler: Callable[[Any], Any]
    prove_isolation: Callable[[Any], None]
    save_checkpoint: Callable[[], None]
    compute_loss: Callable[..., Any]
    add_callback: Callable[[TrainerCallback], None]
    is_world_process_zero: Callable[[], bool]
    get_total_train_batch_size: Callable[[StageArguments], int]
    get_decay_parameter_names: Callable[[Any], list[str]]
    compute_loss_context_manager: Callable[[], AbstractContextManager[Any]]
    get_tp_size: Callable[[], int]
    _prepare_inputs: Callable[[Inputs], Inputs]

    @property
    def current_evaluation(self) -> dict[str, float] | None:
        """Of these weights, if they were evaluated."""

    def evaluate(self) -> dict[str, float]:
        """Metrics of all held-out records."""

    def predict(self, test_dataset: Any, *, metric_key_prefix: str) -> Any:
        """Of transformers: predictions and metrics of other records."""


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
