"""What a feature of a trainer is: its hooks, and how they are called in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from hftune.arguments.training import StageArguments
from hftune.trainers.features.run import Inputs, Run

FeatureType = TypeVar("FeatureType", bound="Feature")
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Epoch:
    """What is known when an epoch begins.

    Attributes:
        loader: Its batches.
        number: From 0.
        done: Micro batches of it that a run before an interruption has trained; 0 for an epoch that begins anew.
    """

    loader: DataLoader[Any]
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

    def make_train_loader(self, run: Run) -> DataLoader[Any] | None:
        """A loader in the place of the Trainer's."""

    def making_train_loader(self, run: Run) -> AbstractContextManager[None]:
        """Around the making of the Trainer's own loader."""
        return nullcontext()

    def on_train_loader(self, run: Run, loader: DataLoader[Any]) -> None:
        """The Trainer's own loader is made."""

    def train_sampler(self, run: Run, dataset: Any) -> Sampler[Any] | None:
        """The order of the training records, in the place of the Trainer's."""

    def count_examples(self, run: Run, loader: DataLoader[Any]) -> int | None:
        """Records of an epoch, in the place of the Trainer's count."""

    def rows_per_step(self, run: Run, rows: int) -> int:
        """Rows of an optimizer step, of what the Trainer counts."""
        return rows

    def on_steps(self, run: Run, loader: DataLoader[Any]) -> None:
        """The number of steps is about to be worked out from a loader."""

    def before_epoch(self, run: Run, epoch: Epoch) -> None:
        """An epoch, or the rest of one, begins."""

    def fetching(self, run: Run) -> AbstractContextManager[None]:
        """Around the reading of the micro batches of a step."""
        return nullcontext()

    def batches(self, run: Run, batches: Iterator[Any]) -> Iterator[Any]:
        """The micro batches as they are read."""
        return batches

    def evaluation_data(self, run: Run, dataset: Dataset[Any]) -> Dataset[Any]:
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

    def add(self, features: Sequence[Feature]) -> None:
        """Put features behind those that are there, each class once."""
        known = {type(feature) for feature in self.all}
        self.all += tuple(feature for feature in features if type(feature) not in known)
        self._having.clear()

    def one(self, kind: type[FeatureType]) -> FeatureType:
        """The feature of a class, of which there is one."""
        # Unpacking fails where there are several or none, which a stage must not have.
        (found,) = (feature for feature in self.all if isinstance(feature, kind))
        return found

    def having(self, hook: Callable[..., Any]) -> tuple[Feature, ...]:
        """Those that override a hook of `Feature`, in order: a hot loop does not call the ones that do nothing."""
        name = hook.__name__
        # Looked up once: hooks of a step are called for each micro batch.
        if name not in self._having:
            self._having[name] = tuple(one for one in self.all if getattr(type(one), name) is not hook)
        return self._having[name]

    def call(self, hook: Callable[Concatenate[Feature, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a hook from the first feature to the last."""
        for feature in self.having(hook):
            getattr(feature, hook.__name__)(*args, **kwargs)

    def call_reversed(self, hook: Callable[Concatenate[Feature, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a hook from the last feature to the first."""
        # The way out: what the first feature began it ends last.
        for feature in reversed(self.having(hook)):
            getattr(feature, hook.__name__)(*args, **kwargs)

    def answers(self, hook: Callable[Concatenate[Feature, P], T], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        """What a hook returns, feature by feature; the next one is called when its answer is asked for."""
        return (getattr(feature, hook.__name__)(*args, **kwargs) for feature in self.having(hook))

    def first_answer(
        self, hook: Callable[Concatenate[Feature, P], T | None], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """What the first feature that has an answer returns; those behind it are not called."""
        return next((answer for answer in self.answers(hook, *args, **kwargs) if answer is not None), None)

    def merged(self, hook: Callable[[Feature, Run], dict[str, Any]], run: Run) -> dict[str, Any]:
        """What a hook of all features returns, together."""
        return {name: value for found in self.answers(hook, run) for name, value in found.items()}

    @contextmanager
    def around(
        self,
        hook: Callable[Concatenate[Feature, P], AbstractContextManager[None]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Iterator[None]:
        """All contexts of a hook, the first feature's outermost."""
        # An error in the block, or in entering a later context, leaves those that were entered.
        with ExitStack() as stack:
            for context in self.answers(hook, *args, **kwargs):
                stack.enter_context(context)
            yield
