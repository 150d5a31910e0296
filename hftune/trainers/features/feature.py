"""What a feature of a trainer is: its hooks, how they are called in order, and what of it goes into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hftune.distributed import ranks
from hftune.errors import ManifestError, shown
from hftune.logging import notice
from hftune.opening.torch_file import load_torch
from hftune.trainers.features.run import Inputs, Run


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

    def begin_loop(self, run: Run) -> None:
        """The batches of one data set are about to be evaluated."""

    def end_loop(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """They have been, and nothing is logged of them yet; metrics can be changed."""

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

    def call(self, hook: Callable[..., None], *args: Any) -> None:
        """Call a hook: `before_...` from the first feature to the last, others the way out, from last to first."""
        having = self.having(hook)
        for feature in having if hook.__name__.startswith("before_") else reversed(having):
            getattr(feature, hook.__name__)(*args)


PATTERN = "run_state_*.pt"
"""One file a process in each checkpoint."""


def write_state(run: Run, folder: Path) -> None:
    """Write what features keep, by the names of their classes; every rank must ask."""
    saved = {type(one).__name__: one.state(run) for one in run.features.having(Feature.state)}
    torch.save(saved, folder / PATTERN.replace("*", str(ranks.rank())))


def load_state(run: Run, checkpoint: str) -> None:
    """Have features take up what they kept; nothing of what the checkpoint lacks, as one of another tool.

    A process that the checkpoint does not know reads the file of another: what is each process's own says whose it is.

    Raises:
        ManifestError: A file holds something else.
    """
    files = sorted(Path(checkpoint).glob(PATTERN))
    own = Path(checkpoint) / PATTERN.replace("*", str(ranks.rank()))
    file = own if own in files else next(iter(files), None)
    if file is None and ranks.is_main():
        notice(f"{checkpoint} has no {PATTERN}: sums over the run, and figures not logged yet, begin here")
    with state_errors(file or own):
        saved: dict[str, Any] = load_torch(file) if file else {}
        for feature in run.features.having(Feature.load_state):
            feature.load_state(run, saved.get(type(feature).__name__, {}))


@contextmanager
def state_errors(file: Path) -> Iterator[None]:
    """Around what takes a saved state apart: other keys and values than were written become the one message."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(
            f"{file} is no state of a run: {type(error).__name__} {shown(error)}",
            place=str(file),
            fix="resume from another checkpoint, or start anew from its weights: --warm_start",
        ) from error
