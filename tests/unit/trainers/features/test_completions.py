"""Samples of answers, from what TRL keeps of a batch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hftune.trainers.features.answers import COMPLETIONS_NAME, Completions, as_rewarded
from tests.unit.trainers.features import made_up


def run_with(folder: Path, **logs: Any) -> Any:
    made = made_up.run(
        args={"output_dir": str(folder), "sample_completions": 2, "per_device_train_batch_size": 4},
        model=SimpleNamespace(training=True),
    )
    made._logs = {"prompt": [], "completion": [], "advantages": [], "rewards": {}} | logs
    return made


def test_the_first_answers_of_a_step_are_written_once(tmp_path: Path) -> None:
    answers = {"prompt": ["a", "b", "c"], "completion": ["A", "B", "C"], "advantages": [0.5, -0.5, 0.0]}
    run, feature = run_with(tmp_path, **answers, rewards={"length": [1.0, 0.0, 0.5]}), Completions()
    run.state.global_step = 3
    feature.write(run)
    feature.write(run)  # of an evaluation at the same step
    rows = [json.loads(line) for line in (tmp_path / COMPLETIONS_NAME).read_text().splitlines()]
    assert [(row["prompt"], row["completion"], row["rewards"], row["advantage"]) for row in rows] == [
        ("a", "A", {"length": 1.0}, 0.5),
        ("b", "B", {"length": 0.0}, -0.5),
    ]
    assert {(row["step"], row["mode"]) for row in rows} == {(3, "train")}


def test_an_answer_without_a_reward_is_null(tmp_path: Path) -> None:
    """NaN is no JSON."""
    answers = {"prompt": ["a"], "completion": ["A"], "advantages": [math.nan], "rewards": {"length": [math.nan]}}
    Completions().write(run_with(tmp_path, **answers))
    text = (tmp_path / COMPLETIONS_NAME).read_text()
    assert "NaN" not in text
    assert json.loads(text)["rewards"] == {"length": None} and json.loads(text)["advantage"] is None
    Completions().write(run_with(tmp_path, **(answers | {"advantages": [None], "rewards": {}})))


def test_trained_tokens_are_those_of_all_steps(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    run.args.world_size, run.args.gradient_accumulation_steps = 2, 3
    run.state.log_history = [
        {"step": 2, "completions/mean_length": 10.0},
        {"step": 2, "eval_loss": 1.0},
        {"step": 5, "completions/mean_length": 20.0},
    ]
    assert Completions().trained_tokens(run) == 4 * 3 * 2 * (2 * 10 + 3 * 20)


def test_an_answer_of_one_message_is_its_text() -> None:
    assert as_rewarded([{"role": "assistant", "content": "yes"}]) == "yes"
    calls = [{"role": "assistant", "content": "", "tool_calls": [1]}]
    assert as_rewarded(calls) is calls
