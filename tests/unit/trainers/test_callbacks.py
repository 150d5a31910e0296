"""Callbacks that a run names: early stopping, and the user's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import TrainerControl, TrainerState

from hftune import logging
from hftune.trainers.callbacks import EarlyStopping, asked_callbacks

ARGS: Any = SimpleNamespace(
    load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=False, eval_strategy="steps"
)


def evaluated(callback: EarlyStopping, state: TrainerState, losses: list[float]) -> list[bool]:
    """Whether training would stop, after each evaluation."""
    control, told = TrainerControl(), []
    for loss in losses:
        callback.on_evaluate(ARGS, state, control, metrics={"eval_loss": loss})
        # The Trainer notes the best figure after its callbacks have seen it.
        state.best_metric = min(loss, state.best_metric if state.best_metric is not None else loss)
        told.append(control.should_training_stop)
    return told


def test_it_stops_after_so_many_without_progress_and_says_so_once() -> None:
    state = TrainerState(global_step=40)
    assert evaluated(EarlyStopping(2), state, [3.0, 2.0, 2.5, 1.9, 1.95, 1.9, 1.9]) == [False] * 5 + [True, True]
    (words,) = [said for said in logging.notices() if "stopped early" in said]
    assert "at step 40: loss was no better in 2 evaluations" in words


def test_a_threshold_is_what_counts_as_better() -> None:
    assert evaluated(EarlyStopping(2, 0.2), TrainerState(), [3.0, 2.9, 2.8]) == [False, False, True]


def test_it_counts_on_from_a_checkpoint() -> None:
    first = EarlyStopping(3)
    assert evaluated(first, TrainerState(), [1.0, 2.0, 2.0]) == [False] * 3
    state = TrainerState(best_metric=1.0, stateful_callbacks={"EarlyStopping": first.state()})
    second = EarlyStopping(3)
    second.on_train_begin(ARGS, state, TrainerControl())
    assert evaluated(second, state, [2.0]) == [True]
    fresh = EarlyStopping(3)
    fresh.on_train_begin(ARGS, TrainerState(stateful_callbacks=[fresh]), TrainerControl())
    assert fresh.early_stopping_patience_counter == 0


def test_the_users_own_come_with_their_arguments(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from transformers import TrainerCallback\n\n"
        "class Mine(TrainerCallback):\n    def __init__(self, after=1):\n        self.after = after\n"
    )
    names = [f"{tmp_path}/mine.py:Mine", f'{tmp_path}/mine.py:Mine{{"after": 3}}']
    args: Any = SimpleNamespace(early_stopping_patience=2, early_stopping_threshold=0.5, callbacks=names)
    stopping, *own = asked_callbacks(args)
    assert isinstance(stopping, EarlyStopping) and stopping.early_stopping_threshold == 0.5
    assert [(type(one).__name__, one.after) for one in own] == [("Mine", 1), ("Mine", 3)]
    args.callbacks, args.early_stopping_patience = None, None
    assert asked_callbacks(args) == []
