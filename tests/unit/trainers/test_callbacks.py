"""Callbacks that a run names: early stopping, the user's own, and --eval_tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from hftune import child_processes, logging
from hftune.preflight.rules import callbacks as rules
from hftune.trainers.callbacks import CheckpointTasks, EarlyStopping, alone, asked_callbacks

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


def tasks(folder: Path, log: Callable[[dict[str, float]], None], **given: Any) -> CheckpointTasks:
    training: dict[str, Any] = {"output_dir": str(folder / "sft"), "eval_tasks": ["loss", "chrf"], "use_cpu": True}
    training |= {"hang_timeout": 100.0, "ddp_timeout": 1800, "trust_remote_code": False, **given}
    data: Any = SimpleNamespace(validation_file_dir="held_out", max_eval_samples=5)
    args: Any = SimpleNamespace(**training)
    return CheckpointTasks(data, args, log)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], list[Any]]:
    """Has a function stand in for the other process; gives what it was called with."""

    def stand_in(evaluate: Callable[..., Any]) -> list[Any]:
        calls: list[Any] = []

        def run(command: list[str], **given: Any) -> Any:
            calls.append((command, given))
            return evaluate(Path(command[command.index("--output_dir") + 1]))

        monkeypatch.setattr(child_processes, "run", run)
        return calls

    return stand_in


def test_a_checkpoint_is_evaluated_and_its_figures_logged(started: Any, tmp_path: Path) -> None:
    def evaluate(results: Path) -> Any:
        results.mkdir(parents=True)
        figures = {"loss": {"value": 2.5, "low": 2.0, "high": 3.0}, "chrf": {"value": 31.0}}
        (results / "evaluation.json").write_text(json.dumps({"models": {"checkpoint-7": figures}}))
        return SimpleNamespace(returncode=0, stderr="")

    calls = started(evaluate)
    logged: list[dict[str, float]] = []
    tasks(tmp_path, logged.append).on_save(None, TrainerState(global_step=7), None)
    assert logged == [{"tasks/loss": 2.5, "tasks/chrf": 31.0}]
    ((command, given),) = calls
    words = command[command.index("evaluate") :]
    assert words[:5] == ["evaluate", f"{tmp_path}/sft/checkpoint-7", "--eval_tasks", "loss", "chrf"]
    assert words[words.index("--output_dir") + 1] == f"{tmp_path}/sft-tasks/checkpoint-7", "beside the output folder"
    assert words[words.index("--validation_file_dir") + 1] == "held_out"
    assert words[words.index("--max_eval_samples") + 1] == "5" and words[words.index("--use_cpu") + 1] == "True"
    assert given["timeout"] == 90.0 and given["env"]["WORLD_SIZE"] == "1"


def test_what_fails_costs_no_training(started: Any, tmp_path: Path) -> None:
    def fail(results: Path) -> Any:
        return SimpleNamespace(returncode=2, stderr="noise\n\nerror: there is no model\n  where: x\n  to do: y\n")

    def hang(results: Path) -> Any:
        raise child_processes.TimeoutExpired("hftune", 90)

    logged: list[Any] = []
    for evaluate in (fail, hang):
        started(evaluate)
        given = tasks(tmp_path, logged.append, hang_timeout=0 if evaluate is hang else 100.0)
        given.on_save(None, TrainerState(global_step=7), None)
    assert logged == []
    said = [words for words in logging.notices() if "checkpoint-7 was not evaluated" in words]
    assert "error: there is no model; where: x; to do: y" in said[0] and "noise" not in said[0]
    assert "within 1620 s" in said[1], "without --hang_timeout the time-out of collectives counts"


def test_the_other_process_is_no_rank() -> None:
    found = alone({"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1", "HOME": "/h"})
    assert found == {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "HOME": "/h"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"validation_file_dir": None}, ["no held-out records"]),
        ({"eval_tasks": ["exact_mach"]}, ["no task exact_mach"]),
        ({"eval_tasks": ["hellaswag"], "validation_file_dir": None}, ["no task hellaswag"]),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    args: dict[str, Any] = {"callbacks": None, "early_stopping_patience": None, "early_stopping_threshold": 0.0}
    args |= {"eval_tasks": ["loss"], "save_strategy": "steps", "async_save": False}
    args |= {"validation_file_dir": "held_out", "do_train": True, "eval_strategy": "no"}
    training = SimpleNamespace(**args | given)
    facts: Any = SimpleNamespace(stage=given.get("stage", "sft"), training_args=training, arguments=(training,))
    found = [problem.cause for problem in rules.check_callbacks(facts)]
    assert len(found) == len(said) and all(part in cause for part, cause in zip(said, found, strict=True)), found
