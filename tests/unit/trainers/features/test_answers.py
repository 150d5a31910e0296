"""What trainers that draw their own answers add: samples in a file, the seconds of each part, rounds that go on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.distributed import phases
from hftune.trainers.features.answers import COMPLETIONS_NAME, AnswerRound, Completions, PartSeconds, as_rewarded
from hftune.trainers.features.sums import MetricSums
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Seconds that pass only when they are told to."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(phases, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(phases, "_entered", 100.0)
    monkeypatch.setattr(phases, "_seconds", {})
    phases.take_seconds()
    return clock


def spend(clock: Any, name: str, seconds: float) -> None:
    phases.enter(name)
    clock.now += seconds / 2
    phases.keep_alive()  # what shows that it moves begins no other part
    clock.now += seconds / 2


def test_a_mean_over_the_steps_since_the_last_log(clock: Any) -> None:
    feature, run = PartSeconds(), made_up.run()
    run.state.global_step = 3  # resumed
    phases.enter(phases.PREPARATION)
    clock.now += 50
    feature.before_train(run, None)
    for _ in range(2):
        feature.before_step(run, None, {})
        spend(clock, phases.GENERATION, 3.0)
        spend(clock, phases.OLD, 1.0)
        spend(clock, phases.GENERATION, 1.0)
        run.state.global_step += 1
    logs = {"loss": 1.0}
    feature.before_log(run, logs)
    assert logs == {
        "loss": 1.0, "seconds/generation": 4.0, "seconds/old_log-probabilities": 1.0, "seconds/preparation": 0.0,
    }  # fmt: skip
    phases.enter(phases.GENERATION)
    # The part at hand goes on, and what was said is not said again.
    clock.now += 2.0
    spend(clock, phases.BACKWARD, 6.0)
    evaluation: dict[str, float] = {"eval_loss": 1.0}
    feature.before_log(run, evaluation)
    assert evaluation == {"eval_loss": 1.0}
    run.state.global_step += 1
    logs = {"loss": 1.0}
    feature.before_log(run, logs)
    assert {name: value for name, value in logs.items() if value} == {
        "loss": 1.0, "seconds/generation": 2.0, "seconds/backward": 6.0,
    }  # fmt: skip


def run_at(step: int, **args: Any) -> Any:
    args = {"gradient_accumulation_steps": 3, "steps_per_generation": 3, "per_device_train_batch_size": 2} | args
    answers = [{"ids": torch.arange(2) + number, "pixels": None} for number in range(3)]
    return made_up.run(
        args=args,
        num_iterations=2,
        _step=step,
        _buffered_inputs=answers,
        rollout="of the round",
        _metrics={"train": {"reward": [1.5], "kl": []}},
        sums={"train": MetricSums(torch.device("cpu"))},
    )


def test_between_rounds_no_answers_are_saved_and_the_place_is_counted(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4}')
    run = run_at(0)
    run._buffered_inputs, run._metrics = None, {"train": {}}
    AnswerRound().before_train(run, str(tmp_path))
    stopped = run_at(12)
    stopped.sums["train"].add("kl", torch.tensor([2.0]))
    AnswerRound().load_state(run, AnswerRound().state(stopped))
    assert (run._step, run._buffered_inputs) == (12, None) and run._metrics["train"] == {"reward": [1.5]}
    assert run.sums["train"].means(run.accelerator) == {"kl": 2.0}, "that no log has yet"
    AnswerRound().before_train(run, None)
    assert run._step == 12, "a fresh run counts by itself"


@pytest.mark.parametrize("other", [None, "batch", "rank", "none"])
def test_answers_for_other_batches_are_drawn_anew_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, other: str | None
) -> None:
    monkeypatch.setattr("hftune.logging._notices", said := [])
    saved = {} if other == "none" else AnswerRound().state(run_at(9))
    saved |= {"rank": 1} if other == "rank" else {}
    run = run_at(9, **({"per_device_train_batch_size": 4} if other == "batch" else {}))
    run._buffered_inputs, run._metrics, run.rollout = None, {"train": {}}, None
    AnswerRound().load_state(run, saved)
    assert any("new answers are drawn" in line for line in said) == (run._buffered_inputs is None) == bool(other)
    if not other:
        assert [batch["ids"].tolist() for batch in run._buffered_inputs] == [[0, 1], [1, 2], [2, 3]]
        assert run.rollout == "of the round"
    assert run._metrics["train"] == ({} if other in ("rank", "none") else {"reward": [1.5]}), "of each process its own"
