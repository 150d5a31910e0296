"""RL from the reward model of the stage before, and from a function."""

from __future__ import annotations

from collections.abc import Callable

import pytest

GENERATION = ("--num_generations", "2", "--max_completion_length", "8", "--logging_steps", "1")


@pytest.mark.parametrize("mode", ["zero2", "zero3"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_grpo_from_a_reward_model(stage_run: Callable, launched_run: Callable, method: str, mode: str) -> None:
    reward_model = stage_run("rm", method, mode).folder
    start = launched_run if method == "lora" else stage_run
    result = start("rl", method, mode, (*GENERATION, "--reward_model_path", str(reward_model)))
    assert result.manifest["stage"] == "rl"
    assert result.manifest["steps"] == 2
    assert "eval_reward" in result.manifest["metrics"]


def test_rloo_from_a_function(stage_run: Callable) -> None:
    function = "tests/integration/reward_functions.py:count_digits"
    result = stage_run("rl", "lora", "zero2", (*GENERATION, "--rl_algorithm", "rloo", "--reward_funcs", function))
    assert result.manifest["arguments"]["training"]["rl_algorithm"] == "rloo"
    assert "eval_rewards/count_digits/mean" in result.manifest["metrics"]
