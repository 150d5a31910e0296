"""What a feature of a trainer is: its hooks, and how they are called in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from hftune.trainers.features.run import Inputs, Run

P = ParamSpec("P")


class Feature:
    """Something that is added to several places of a trainer; the hooks that it needs are overridden.

    What has one place is called there by `StageTrainer` itself, and what transformers' callbacks can do is a callback.
    `before_...` hooks run from the first feature to the last, all others but `batches` from the last to the first, as
    if each feature were wrapped around all that follow it. The list of them is `StageTrainer.make_features`.
    """

    def on_built(self, run: Run) -> None:
        """The trainer is made."""

    def before_train(self, run: Run, checkpoint: str | None) -> None:
        """Training is asked for; `checkpoint` is the folder to resume from."""

    def batches(self, run: Run, batches: Iterator[Any]) -> Iterator[Any]:
        """The micro batches of a step as they are read."""
        return batches

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """A micro batch is about to be trained; `model` is the wrapped one."""

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """Figures are about to be logged, and can be added to."""

    def before_evaluate(self, run: Run) -> None:
        """An evaluation is asked for."""

    def after_evaluate(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """It has measured; metrics can be added to."""

    def state(self, run: Run) -> dict[str, Any]:
        """What a resumed run goes on with: tensors, numbers, texts and containers of them; every rank must ask."""
        return {}

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Take that up before the first step; empty where the checkpoint has none of this feature.

        Args:
            saved: By this process, or by another one where the world has grown.
        """

    def save_files(self, run: Run, folder: Path) -> None:
        """Add files to a checkpoint that are read by name, or are large; all ranks."""


class Features:
    """The features of one trainer in their order, asked hook by hook."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self.all = tuple(features)
        self._having: dict[str, tuple[Feature, ...]] = {}

    def having(self, hook: Callable[..., Any]) -> tuple[Feature, ...]:
        """Those that override a hook of `Feature`, in order: a hot loop does not call the ones that do nothing."""
        name = hook.__name__
        # Looked up once: hooks of a step are called for each micro batch.
        if name not in self._having:
            self._having[name] = tuple(one for one in self.all if getattr(type(one), name) is not hook)
        return self._having[name]

    def call(self, hook: Callable[Concatenate[Feature, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a hook: `before_...` from the first feature to the last, others the way out, from last to first."""
        having = self.having(hook)
        for feature in having if hook.__name__.startswith("before_") else reversed(having):
            getattr(feature, hook.__name__)(*args, **kwargs)
