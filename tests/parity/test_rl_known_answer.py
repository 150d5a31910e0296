"""A task whose best reward is known: digits and small letters in turns. The algorithms that are not TRL's find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.architectures import few_quick
from tests.unit.trainers.rl_runs import logged, make_trainer

TOKENS = 4
SHARED = ("--per_device_train_batch_size", "64", "--num_generations", "16", "--lr_scheduler_type", "constant")
PPO = ("--num_iterations", "2", "--vf_coef", "1.0", "--lam", "1.0")
SETTINGS = {
    "ppo": ("--learning_rate", "5e-3", "--max_steps", "44", "--beta", "0.005", *PPO),
    "online_dpo": ("--learning_rate", "3e-3", "--max_steps", "30", "--beta", "0.1"),
}


class Pattern:
    """The share of the tokens that are what their place asks for; all of `TOKENS` is 1."""

    __name__ = "pattern"

    def __init__(self, model: Path) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.digits = set(tokenizer.convert_tokens_to_ids(list("0123456789")))
        self.letters = set(tokenizer.convert_tokens_to_ids(list("abcdefghijklmnopqrstuvwxyz")))

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [
            sum(token in (self.letters if place % 2 else self.digits) for place, token in enumerate(ids)) / TOKENS
            for ids in completion_ids
        ]


@pytest.mark.parametrize("algorithm", few_quick([*SETTINGS], ["ppo"]))
def test_the_best_reward_is_found(algorithm: str, tiny_model: Path, tmp_path: Path) -> None:
    flags = (*SHARED, "--max_completion_length", str(TOKENS), *SETTINGS[algorithm])
    trainer = make_trainer(tiny_model, tmp_path, algorithm, Pattern(tiny_model), *flags)
    trainer.train()
    rewards = logged(trainer, "reward")
    assert rewards[0] < 0.2, "the task is not solved by chance"
    assert sum(rewards[-4:]) / 4 >= 0.95
    assert (tmp_path / "completions.jsonl").is_file()
