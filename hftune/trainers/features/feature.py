"""What a feature of a trainer is, and what it sees of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState

from hftune.arguments.training import StageArguments

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

    # Of TRL's trainers that generate: the micro batch in a batch of answers, samples, and what rewards are asked with.
    _step: int
    _logs: dict[str, Any]
    _tokenizer: Any
    eos_token_ids: list[int]
    reward_func_names: list[str]
    num_generations: int
    max_completion_length: int
    mask_truncated_completions: bool

    def upstream_sampler(self, dataset: Any) -> Any:
        """What the upstream trainer draws the records of a data set with."""

    def add_callback(self, callback: TrainerCallback) -> None:
        """Of transformers."""

    def is_world_process_zero(self) -> bool:
        """Of transformers: whether this is the first of all processes."""

    def get_total_train_batch_size(self, args: StageArguments) -> int:
        """Rows of an optimizer step over all processes."""

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Of transformers: parameters with weight decay."""

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the step just made."""

    def counts(self) -> dict[str, Any]:
        """What stage and features have counted so far, over all ranks; every rank must ask."""

    def resume_counts(self, saved: dict[str, Any]) -> None:
        """Continue to count from what `counts` returned."""

    def compute_loss(self, model: Any, inputs: Inputs, return_outputs: bool = False) -> Any:
        """The loss of a batch with all that features add to it."""

    def evaluate(self) -> dict[str, float]:
        """Metrics of all held-out records."""

    def predict(self, test_dataset: Any, *, metric_key_prefix: str) -> Any:
        """Of transformers: predictions and metrics of other records."""

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """Of transformers: autocast, where it is used."""

    def _prepare_inputs(self, inputs: Inputs) -> Inputs:
        """Of transformers: a batch on the device."""

    def get_tp_size(self) -> int:
        """Of transformers: tensor-parallel processes that accelerate knows of."""


@dataclass(frozen=True)
class Epoch:
    """What is known when an epoch begins.

    Attributes:
        loader: Its batches.
        number: From 0.
        done: Micro batches of it that a run before an interruption has trained; 0 for an epoch that begins anew.
    """

    loader: DataLoader
    number: int
    done: int


class Feature:
    """One thing that hftune adds to a trainer; the hooks that it needs are overridden, the others do nothing.

    `StageTrainer` calls the hooks of its features. `before_...` hooks run from the first feature to the last and
    `after_...` hooks from the last to the first, as if each feature were wrapped around all that follow it. A hook that
    returns a context manager is entered before what it is named after, and left behind it. Of hooks that stand in for
    something upstream (`make_...`, `load_...`, `..._sampler`) the first feature that gives an answer is asked alone.
    """

    # The trainer is made.

    def building(self, model: Any, args: StageArguments) -> AbstractContextManager[None]:
        """Around the constructor of the trainer."""
        return nullcontext()

    def on_accelerator(self, run: Run) -> None:
        """The accelerator is there; model and data are not wrapped yet."""

    def on_built(self, run: Run) -> None:
        """The trainer is made; from the last feature to the first."""

    # Training as a whole.

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """Training is asked for; `checkpoint` is the folder to resume from."""

    def training(self, run: Run) -> AbstractContextManager[None]:
        """Around all of training."""
        return nullcontext()

    def after_train(self, run: Run) -> None:
        """Training has ended without an error."""

    # Data.

    def make_train_loader(self, run: Run) -> DataLoader | None:
        """A loader in the place of the Trainer's."""

    def making_train_loader(self, run: Run) -> AbstractContextManager[None]:
        """Around the making of the Trainer's own loader."""
        return nullcontext()

    def on_train_loader(self, run: Run, loader: DataLoader) -> None:
        """The Trainer's own loader is made."""

    def train_sampler(self, run: Run, dataset: Any) -> Sampler | None:
        """The order of the training records, in the place of the Trainer's."""

    def count_examples(self, run: Run, loader: DataLoader) -> int | None:
        """Records of an epoch, in the place of the Trainer's count."""

    def rows_per_step(self, run: Run, rows: int) -> int:
        """Rows of an optimizer step, of what the Trainer counts."""
        return rows

    def on_steps(self, run: Run, loader: DataLoader) -> None:
        """The number of steps is about to be worked out from a loader."""

    def before_epoch(self, run: Run, epoch: Epoch) -> None:
        """An epoch, or the rest of one, begins."""

    def fetching(self, run: Run) -> AbstractContextManager[None]:
        """Around the reading of the micro batches of a step."""
        return nullcontext()

    def batches(self, run: Run, batches: Iterator[Any]) -> Iterator[Any]:
        """The micro batches as they are read."""
        return batches

    def evaluation_data(self, run: Run, dataset: Dataset) -> Dataset:
        """Records that are about to be evaluated."""
        return dataset

    # A step.

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """A micro batch is about to be trained; `model` is the wrapped one."""

    def stepping(self, run: Run) -> AbstractContextManager[None]:
        """Around forward and backward pass of a micro batch."""
        return nullcontext()

    def forward(self, run: Run) -> AbstractContextManager[None]:
        """Around the computation of a loss, in training and evaluation."""
        return nullcontext()

    def make_loss(self, run: Run, model: Any, inputs: Inputs, counted: Any) -> tuple[torch.Tensor, Any] | None:
        """Loss and outputs in the place of the trainer's own; `counted` as for `after_loss`."""

    def after_loss(self, run: Run, loss: torch.Tensor, counted: Any) -> torch.Tensor:
        """The loss that is trained on, a scalar; `counted` are the labels that it was divided by, None for a mean."""
        return loss

    def after_step(self, run: Run, inputs: Inputs, loss: torch.Tensor) -> None:
        """A micro batch has been trained; its loss is detached."""

    def ending_step(self, run: Run) -> AbstractContextManager[None]:
        """Around logging, evaluation and saving after an optimizer step."""
        return nullcontext()

    def on_step_end(self, run: Run, norm: Any) -> None:
        """The optimizer has made its step, with gradients of this norm; nothing is logged or saved yet."""

    def tokens_seen(self, run: Run, tokens: int) -> int:
        """Input tokens of a micro batch over all processes, of what the Trainer counts."""
        return tokens

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """Figures are about to be logged, and can be added to."""

    def after_log(self, run: Run, logs: dict[str, float]) -> None:
        """Figures have been logged."""

    # Evaluation.

    def known_evaluation(self, run: Run) -> dict[str, float] | None:
        """Metrics of all held-out records where they are known already, in the place of an evaluation."""

    def before_evaluate(self, run: Run) -> None:
        """An evaluation is asked for."""

    def after_evaluate(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """It has measured; metrics can be added to."""

    def before_evaluation_loop(self, run: Run, prefix: str) -> None:
        """The batches of one data set are about to be gone through."""

    def after_evaluation_loop(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """They have been; metrics can be changed."""

    def counts_labels(self, run: Run) -> bool:
        """Whether losses are divided by the labels of all processes; else each is a mean over its own."""
        return True

    def before_prediction(self, run: Run, model: Any, inputs: Inputs) -> Inputs:
        """A batch as it is evaluated."""
        return inputs

    def make_prediction(self, run: Run, model: Any, inputs: Inputs, loss_only: bool) -> tuple[Any, ...] | None:
        """Loss, predictions and labels of a batch in the place of the trainer's own."""

    def after_prediction(self, run: Run, inputs: Inputs, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """Loss, predictions and labels of a batch."""
        return result

    # Optimizer and schedule.

    def before_optimizer(self, run: Run) -> None:
        """The optimizer is about to be made."""

    def choose_optimizer(self, run: Run, model: Any, upstream: Callable[[], Any]) -> Any:
        """Class and arguments of the optimizer; `upstream()` are those that the Trainer would take."""

    def make_scheduler(self, run: Run, steps: int, optimizer: Any) -> Any:
        """The learning-rate schedule, in the place of the Trainer's."""

    # Saving and loading.

    def counts(self, run: Run) -> dict[str, Any]:
        """What goes into the totals of a checkpoint, over all ranks; every rank must ask."""
        return {}

    def resume_counts(self, run: Run, saved: dict[str, Any]) -> None:
        """Take up what all `counts` together returned."""

    def before_save(self, run: Run) -> None:
        """Weights are about to be saved, with a checkpoint or by themselves."""

    def checkpointing(self, run: Run) -> AbstractContextManager[None]:
        """Around the writing of a checkpoint."""
        return nullcontext()

    def checkpoint_parent(self, run: Run) -> Path | None:
        """The folder in which the Trainer makes `checkpoint-...`, in the place of its own."""

    def save_state(self, run: Run, folder: Path) -> None:
        """Add a feature's own files to a checkpoint; all ranks, from the last feature to the first."""

    def saving_weights(self, run: Run, folder: Path) -> AbstractContextManager[None]:
        """Around the writing of weights into a folder."""
        return nullcontext()

    def weights_to_save(self, run: Run, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The gathered weights, by name."""
        return weights

    def after_weights(self, run: Run, folder: Path) -> None:
        """Weights have been written; only where this process writes any."""

    def loading_weights(self, run: Run, checkpoint: str | None) -> AbstractContextManager[None]:
        """Around the loading of weights from a checkpoint without DeepSpeed, or of the best ones."""
        return nullcontext()

    def load_weights(self, run: Run, checkpoint: str) -> bool:
        """Load the weights of a checkpoint without DeepSpeed; whether that is done."""
        return False

    def load_best(self, run: Run) -> bool:
        """Go back to the best weights; whether that is done."""
        return False

    def load_optimizer(self, run: Run, checkpoint: str) -> bool:
        """Load the states of optimizer and schedule without DeepSpeed; whether that is done."""
        return False

    def after_random_states(self, run: Run, checkpoint: str) -> None:
        """Random states have been loaded from a checkpoint."""

    # What a finished run says of itself.

    def before_result(self, run: Run) -> None:
        """Training is over, and the result is about to be saved."""

    def trained_tokens(self, run: Run) -> int | None:
        """Tokens with a loss so far, over all ranks and interruptions, where that is known; every rank must ask."""

    def figures(self, run: Run) -> dict[str, Any]:
        """For the manifest."""
        return {}


class Features:
    """The features of one trainer in their order, asked hook by hook."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self.all = tuple(features)
        self._having: dict[str, tuple[Feature, ...]] = {}

    def first_to_last(self, hook: Callable[..., Any]) -> tuple[Feature, ...]:
        """Those that override a hook of `Feature`, in order: a hot loop does not call the ones that do nothing."""
        name = hook.__name__
        if name not in self._having:
            self._having[name] = tuple(one for one in self.all if getattr(type(one), name) is not hook)
        return self._having[name]

    def last_to_first(self, hook: Callable[..., Any]) -> tuple[Feature, ...]:
        """The same, from the inside out."""
        return self.first_to_last(hook)[::-1]

    @contextmanager
    def around(self, hook: Callable[..., Any], *given: Any) -> Iterator[None]:
        """All contexts of a hook, the first feature's outermost."""
        with ExitStack() as stack:
            for feature in self.first_to_last(hook):
                stack.enter_context(getattr(feature, hook.__name__)(*given))
            yield
