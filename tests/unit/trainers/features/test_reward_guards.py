"""Guards against rewards that are gamed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hftune.trainers.features.reward_guards import PATIENCE, AllAlike, Drift, distinct_ngrams
from tests.unit.trainers.rl_runs import logged, make_trainer


def test_repetition() -> None:
    assert distinct_ngrams([1, 2, 3, 4, 5]) == 1.0
    assert distinct_ngrams([7] * 10) == 1 / 8
    assert distinct_ngrams([1, 2, 1, 2, 1, 2]) == 2 / 4  # 121, 212, 121, 212
    assert distinct_ngrams([1, 2]) == 1.0


def test_drift_is_what_the_judge_does_not_see() -> None:
    drift = Drift()
    assert drift.measure([0.0, 2.0], [10.0, 30.0]) == 0.0
    assert drift.measure([2.0, 4.0], [30.0, 50.0]) == pytest.approx(0.0), "both gained 2 standard deviations"
    assert drift.measure([4.0, 6.0], [20.0, 20.0]) == pytest.approx(4.0), "only the reward gained"
    assert math.isnan(drift.measure([math.nan], [1.0]))
    # An answer that one of both has not scored says nothing, and is no 0.
    assert drift.measure([4.0, math.nan, 6.0, 9.0], [20.0, 90.0, 20.0, math.nan]) == pytest.approx(4.0)
    assert Drift(drift.first).measure([4.0, 6.0], [20.0, 20.0]) == pytest.approx(4.0)


def said_after(batches: list[list[bool]], **about: Any) -> list[str]:
    given = {"means": {"format": 0.0}, "asked": False, "cut": 0.0, "limit": 8} | about
    guard = AllAlike()
    return [said for differ in batches if (said := guard.measure(differ, **given)) is not None]


def test_rewards_that_teach_nothing_are_said_once() -> None:
    alike = [False, False]
    assert len(said_after([alike] * 3 * PATIENCE)) == 1
    assert said_after([alike] * (PATIENCE - 1)) == []
    assert said_after([*[alike] * (PATIENCE - 1), [False, True]] * 3) == [], "a prompt whose answers differ begins anew"


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({}, 'no prompt asks for it: --system_prompt "..." does, or a "system" text in the records'),
        ({"asked": True}, "begin with a model that was trained to write it"),
        ({"cut": 0.9}, "90% of the answers are cut at --max_completion_length 8: raise it"),
        ({"means": {"accuracy": math.nan}}, "no reward function scores an answer"),
        ({"means": {"accuracy": 1.0}}, "too hard or too easy for this model"),
    ],
)
def test_the_likely_cause_is_named(about: dict[str, Any], expected: str) -> None:
    (said,) = said_after([[False]] * PATIENCE, **about)
    assert expected in said and "the loss is 0" in said
    assert ("no answer has the form" in said) == ("means" not in about)
    assert ("are cut" in said) == ("cut" in about)


@pytest.mark.parametrize(("algorithm", "says"), [("grpo", True), ("grpo", False), ("ppo", True), ("online_dpo", True)])
def test_answers_without_a_score_do_not_hide_that_nothing_is_learned(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, says: bool
) -> None:
    """Taken as 0 they would differ from the others, which all have 1; nothing is said where others have unlike ones."""
    said: list[str] = []
    monkeypatch.setattr("hftune.trainers.features.reward_guards.notice", said.append)
    monkeypatch.setattr("hftune.trainers.features.reward_guards.PATIENCE", 2)

    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        return [None if index % 2 and says else 1.0 if says else float(index) for index, _ in enumerate(completions)]

    flags = ["--max_steps", "8" if algorithm == "ppo" else "2", "--per_device_train_batch_size", "4"]
    flags += ["--max_completion_length", "4", *(["--num_generations", "4"] if algorithm != "ppo" else [])]
    trainer = make_trainer(tiny_model, tmp_path, algorithm, score, *flags)
    trainer.guards.set_judges(([score_all], [None]), trainer.args.device)
    trainer.train()
    assert any("nothing is learned" in one and "score" in one for one in said) is says
    # Every scored answer had the same reward throughout: it has gained nothing.
    assert not says or logged(trainer, "judge/drift") == [0.0] * len(logged(trainer, "judge/drift"))


def score_all(completions: list[Any], **columns: Any) -> list[float]:
    """A judge that has an opinion on each answer."""
    return [float(index % 2) for index, _ in enumerate(completions)]
