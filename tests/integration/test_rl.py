"""RL from the reward model of the stage before, and from a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from hftune.checkpoints.reward_scale import read_scale
from hftune.trainers.rewards.loading import load_reward_model
from tests.conftest import logged

GENERATION = ("--num_generations", "2", "--max_completion_length", "8", "--logging_steps", "1")


def test_grpo_from_a_reward_model(stage_run: Callable) -> None:
    reward_model = stage_run("rm", "full", "zero3").folder
    result = stage_run("rl", "full", "zero3", (*GENERATION, "--reward_model_path", str(reward_model)))
    assert result.manifest["stage"] == "rl"
    assert result.manifest["steps"] == 2
    assert "eval_reward" in result.manifest["metrics"]


DIGITS = "tests/integration/reward_functions.py:count_digits"


def test_from_reward_model_to_merged_policy_under_zero3(stage_run: Callable, run: Callable, tiny_model: Path) -> None:
    """RM, merge, PPO with a critic that begins as it, merge; on two processes."""
    reward = merged(run, stage_run("rm", "lora", "zero3").folder)
    flags = (*GENERATION, "--rl_algorithm", "ppo", "--reward_model_path", str(reward), "--critic_init", "reward")
    judge = ("--reward_funcs", DIGITS, "--reward_weights", "1", "0", "--missing_eos_penalty", "0.1")
    policy = stage_run("rl", "lora", "zero3", (*flags, *judge))
    assert logged(policy.folder, "rewards/count_digits/mean"), "what is not trained on is logged"
    samples = [json.loads(line) for line in (policy.folder / "completions.jsonl").read_text().splitlines()]
    assert {"step", "prompt", "completion", "rewards", "advantage"} <= set(samples[0])
    check_scores(samples, reward)
    folder = merged(run, policy.folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    ids = torch.arange(5, 25)[None]
    before, wanted = base(ids).logits, PeftModel.from_pretrained(base, str(policy.folder))(ids).logits
    torch.testing.assert_close(model(ids).logits, wanted, atol=1e-4, rtol=1e-4)
    assert (wanted - before).abs().max() > 1e-3, "the policy has learnt something"


def check_scores(samples: list[dict[str, Any]], reward: Path) -> None:
    """Two processes under ZeRO-3 were rewarded by what the merged reward model says of each answer alone."""
    model, tokenizer = load_reward_model(str(reward), torch.float32)
    scale = read_scale(str(reward))
    assert scale is not None, "run_rm.py stores one, and merging keeps it"
    for sample in samples:
        chat = [*sample["prompt"], {"role": "assistant", "content": sample["completion"]}]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        score = model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits.item()
        (found,) = (value for name, value in sample["rewards"].items() if name != "count_digits")
        assert found == pytest.approx((score - scale.mean) / scale.std, abs=1e-3)


def merged(run: Callable, adapter: Path) -> Path:
    """The adapter folded into its base, in a folder beside it."""
    folder = adapter.with_name(f"{adapter.name}-merged")
    run("merge_peft_adapter.py", "--peft_model_path", str(adapter), "--output_dir", str(folder), warm=True).check()
    return folder
