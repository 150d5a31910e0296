"""What is said of rewards that teach nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.trainers.features.reward_guards import PATIENCE, RewardGuards
from tests.unit.trainers.features import made_up
from tests.unit.trainers.rl_runs import make_trainer


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr("hftune.trainers.features.reward_guards.notice", found.append)
    return found


def look_at(batches: list[list[float]], *, training: bool = True) -> None:
    """Rewards of two prompts' answers, two each."""
    run = made_up.run(model=torch.nn.Linear(1, 1).train(training), num_generations=2, reward_func_names=["mine"])
    run.mask_truncated_completions, guards = False, RewardGuards()
    for rewards in map(torch.tensor, batches):
        guards.look_at(run, rewards[:, None], rewards, [[1]] * 4)


def test_rewards_that_teach_nothing_are_said_once(said: list[str]) -> None:
    alike, differ = [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.5]
    look_at([alike] * (PATIENCE - 1))
    look_at([*[alike] * (PATIENCE - 1), differ] * 3)
    look_at([alike] * PATIENCE, training=False)
    assert said == []
    look_at([alike] * 3 * PATIENCE)
    (words,) = said
    assert "nothing is learned" in words and "mine 0.5" in words


@pytest.mark.parametrize(("algorithm", "says"), [("grpo", True), ("grpo", False), ("ppo", True)])
def test_answers_without_a_score_do_not_hide_that_nothing_is_learned(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], algorithm: str, says: bool
) -> None:
    """Taken as 0 they would differ from the others, which all have 1; nothing is said where others have unlike ones."""
    monkeypatch.setattr("hftune.trainers.features.reward_guards.PATIENCE", 2)

    def score(completions: list[Any], **columns: Any) -> list[float | None]:
        return [None if index % 2 and says else 1.0 if says else float(index) for index, _ in enumerate(completions)]

    flags = ["--max_steps", "8" if algorithm == "ppo" else "2", "--per_device_train_batch_size", "4"]
    flags += ["--max_completion_length", "4", *(["--num_generations", "4"] if algorithm != "ppo" else [])]
    trainer = make_trainer(tiny_model, tmp_path, algorithm, score, *flags)
    trainer.train()
    assert any("nothing is learned" in one and "score" in one for one in said) is says
