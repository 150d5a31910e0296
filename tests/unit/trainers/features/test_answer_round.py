"""Answers of RL that later steps still train on are saved in checkpoints, and used again after resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.trainers.features.answers import AnswerRound
from tests.unit.trainers.features import made_up
from tests.unit.trainers.rl_runs import logged, make_trainer

FLAGS = ("--max_steps", "4", "--num_generations", "2", "--per_device_train_batch_size", "4", "--learning_rate", "1e-2")
FLAGS += ("--max_completion_length", "6", "--num_iterations", "2", "--save_steps", "3", "--save_strategy", "steps")


def count_vowels(completions: list[Any], **columns: Any) -> list[float]:
    return [sum(letter in "aeiou" for letter in answer[0]["content"]) for answer in completions]


@pytest.mark.parametrize(
    ("algorithm", "flags"),
    [
        ("grpo", ()),
        ("rloo", ("--use_peft", "--lora_r", "4")),
        ("ppo", ("--num_iterations", "1", "--steps_per_generation", "2")),
        ("online_dpo", ()),
    ],
)
def test_a_run_stopped_within_a_round_trains_the_rest_of_it(
    tiny_model: Path, tmp_path: Path, algorithm: str, flags: tuple[str, ...]
) -> None:
    whole = make_trainer(tiny_model, tmp_path / "whole", algorithm, count_vowels, *FLAGS, *flags)
    whole.train()
    torch.manual_seed(5)
    resumed = make_trainer(tiny_model, tmp_path / "resumed", algorithm, count_vowels, *FLAGS, *flags)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    for name in ("loss", "grad_norm"):
        assert logged(resumed, name)[3] == pytest.approx(logged(whole, name)[3], rel=1e-6), name
    assert (tmp_path / "whole" / "checkpoint-3" / "run_state_0.pt").is_file()


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_figures_that_no_log_has_yet_are_kept(tiny_model: Path, tmp_path: Path, algorithm: str) -> None:
    """Logged every second step: the checkpoint after the third holds a step that no log has."""
    flags = (*FLAGS, "--num_iterations", "1", "--logging_steps", "2")
    whole = make_trainer(tiny_model, tmp_path / "whole", algorithm, count_vowels, *flags)
    whole.train()
    resumed = make_trainer(tiny_model, tmp_path / "resumed", algorithm, count_vowels, *flags)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    (then,), (now,) = (
        [one for one in each.state.log_history if one["step"] == 4 and "loss" in one] for each in (whole, resumed)
    )
    names = [name for name in then if not any(word in name for word in ("time", "second", "mfu", "memory"))]
    assert {"reward", "completions/mean_length", "entropy"} <= {*names}
    assert {name: now[name] for name in names} == pytest.approx({name: then[name] for name in names}, nan_ok=True)


def run_at(step: int, **args: Any) -> Any:
    args = {"gradient_accumulation_steps": 3, "steps_per_generation": 3, "per_device_train_batch_size": 2} | args
    answers = [{"ids": torch.arange(2) + number, "pixels": None} for number in range(3)]
    return made_up.run(
        args=args,
        num_iterations=2,
        _step=step,
        _buffered_inputs=answers,
        rollout=None,
        _metrics={"train": {"reward": [1.5], "kl": []}},
        sums={},
    )


def test_between_rounds_no_answers_are_saved_and_the_place_is_counted(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4}')
    run = run_at(0)
    run._buffered_inputs, run._metrics = None, {"train": {}}
    AnswerRound().before_train(run, str(tmp_path))
    AnswerRound().load_state(run, AnswerRound().state(run_at(12)))
    assert (run._step, run._buffered_inputs) == (12, None) and run._metrics["train"] == {"reward": [1.5]}
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
    run._buffered_inputs, run._metrics = None, {"train": {}}
    AnswerRound().load_state(run, saved)
    assert any("new answers are drawn" in line for line in said) == (run._buffered_inputs is None) == bool(other)
    if not other:
        assert [batch["ids"].tolist() for batch in run._buffered_inputs] == [[0, 1], [1, 2], [2, 3]]
    assert run._metrics["train"] == ({} if other in ("rank", "none") else {"reward": [1.5]}), "of each process its own"
