"""Callbacks that a run names: early stopping, and the user's own."""

from __future__ import annotations

from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback

from hftune.arguments.training import StageArguments
from hftune.logging import notice
from hftune.preflight.rules.callbacks import callback_class


def asked_callbacks(args: StageArguments) -> list[TrainerCallback]:
    """New callbacks for `--early_stopping_patience` and for each of `--callbacks`, in this order."""
    patience = args.early_stopping_patience
    stopping = [EarlyStopping(patience, args.early_stopping_threshold)] if patience else []
    asked = (callback_class(text) for text in args.callbacks or [])
    return [*stopping, *(cls(**given) for cls, given in asked)]


class EarlyStopping(EarlyStoppingCallback):
    """transformers' early stopping, which says that it stops, and counts on where a run was interrupted."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up the count of a checkpoint, which transformers writes and does not read."""
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.get(type(self).__name__, {})
        self.early_stopping_patience_counter = saved.get("attributes", {}).get("early_stopping_patience_counter", 0)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say it once: a run that ends before its last step is a surprise otherwise."""
        before = control.should_training_stop
        super().on_evaluate(args, state, control, **kwargs)
        if control.should_training_stop and not before:
            count, name = self.early_stopping_patience_counter, args.metric_for_best_model
            notice(f"stopped early, at step {state.global_step}: {name} was no better in {count} evaluations")
