"""Weights are saved without a pickle of the arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINING_ARGS_NAME

from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class NoPickledArguments(Feature):
    """Keeps training_args.bin from being written.

    It is a pickle of the arguments, the Hub's token and the keys of trackers among them. Nothing reads it again:
    `hftune.json` has the arguments, and resuming takes them from the command line.
    """

    @contextmanager
    def saving_weights(self, run: Run, folder: Path) -> Iterator[None]:
        """A run killed between writing and removing leaves no secret either: what is written is one sentence."""
        args = run.args
        # The Trainer pickles whatever `args` is (5.23): no flag keeps it from that.
        hidden: Any = UnpicklableArguments(args)
        run.args = hidden
        try:
            yield
        finally:
            run.args = args
        if args.should_save:
            # Behind the context: the sentence is a file that nobody wants either.
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)


class UnpicklableArguments:
    """Arguments that can be used and not be pickled: what is pickled is a sentence that says where they are."""

    def __init__(self, args: Any) -> None:
        self._args = args

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, ("the arguments are in hftune.json",)
