"""Variants of GRPO are arguments, and what is logged can be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.arguments.rl_algorithms import GRPO_VARIANTS
from tests.unit.trainers.rl_runs import count_even, logged, make_trainer

pytestmark = pytest.mark.long

SMALL = ("--per_device_train_batch_size", "8", "--max_completion_length", "5", "--num_generations", "4")
COMMON = (*SMALL, "--learning_rate", "1e-3", "--num_iterations", "2", "--max_steps", "2")


@pytest.mark.parametrize("variant", GRPO_VARIANTS)
def test_a_variant_is_its_arguments(variant: str) -> None:
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True", "--grpo_variant", variant]
    args = parse_arguments("rl", argv).training
    assert {name: getattr(args, name) for name in GRPO_VARIANTS[variant][1]} == GRPO_VARIANTS[variant][1]


def test_training_on_none_that_is_cut_is_said(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("hftune.trainers.features.reward_guards.notice", said.append)
    flags = (*COMMON, "--mask_truncated_completions", "--max_completion_length", "1", "--max_steps", "1")
    trainer = make_trainer(tiny_model, tmp_path, "grpo", count_even, *flags)
    trainer.train()
    assert any("such steps train nothing" in line for line in said)


@pytest.mark.parametrize(
    "algorithm", ["ppo", *(pytest.param(one, marks=pytest.mark.slow) for one in ("grpo", "rloo", "online_dpo"))]
)
def test_what_can_be_looked_at(
    algorithm: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of completions; and length, share that was cut and KL."""
    flags = (*COMMON, "--num_iterations", "1", "--beta", "0.1", "--learning_rate", "1e-2")
    flags += ("--log_completions", "--num_completions_to_print", "2")
    trainer = make_trainer(tiny_model, tmp_path, algorithm, count_even, *flags)
    trainer.train()
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("Prompt", "Completion", "count_ev", "Advantage")), printed
    wanted = ("completions/mean_length", "completions/clipped_ratio", "kl")
    assert {*wanted, "reward_std"} <= trainer.state.log_history[0].keys()
    assert logged(trainer, "kl")[1] > 0, "the policy has moved"
