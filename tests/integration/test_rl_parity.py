"""RL on any number of processes, under any ZeRO stage: the same answers, rewards, losses and gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.conftest import tiny_config, tiny_tokenizer

STEPS = 5
FIGURES = ("loss", "grad_norm", "reward", "kl")
TOLERANCE = {"rel": 2e-3, "abs": 2e-5}
"""Sums over processes are made in another order; after five steps of AdamW that has grown to about 1e-4."""

COMMON = ("--max_completion_length", "8", "--logging_steps", "1", "--max_steps", str(STEPS), "--top_k", "1")
FIXED = ("--reward_funcs", "tests.integration.fixed_answers:even_tokens")
WRONG = ("--reward_funcs", "tests.integration.wrong_rank:even_tokens")
FOUR = ("--num_generations", "4", "--num_generations_eval", "2")
# Four answers a step. GRPO's and RLOO's group lies on both processes; a pair of DPO's is whole on one.
ALGORITHMS = {
    "grpo": (*FOUR, "--beta", "0.05", "--num_iterations", "2"),
    "rloo": (*FOUR, "--beta", "0.05"),  # one pass: in a second one the ratios of whole answers are all clipped
    "ppo": ("--num_generations", "1", "--beta", "0.05", "--num_iterations", "2", "--vf_coef", "1.0"),
    "online_dpo": ("--num_generations", "2", "--beta", "0.1"),
}
MODES = ["one_zero0", "one_zero2", "one_zero3", "zero0", "zero2", "zero3"]


def flags(algorithm: str, reward: tuple[str, ...] = FIXED) -> tuple[str, ...]:
    """The command line of an algorithm."""
    return ("--rl_algorithm", algorithm, *COMMON, *ALGORITHMS[algorithm], *reward)


def figures(folder: Path) -> dict[str, list[float]]:
    """What was logged, step by step."""
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return {name: [entry[name] for entry in history if name in entry] for name in FIGURES}


def answers(folder: Path) -> list[dict[str, Any]]:
    """The answers of training with their prompts."""
    lines = [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]
    return [
        {name: line[name] for name in ("step", "prompt", "completion")} for line in lines if line["mode"] == "train"
    ]


def check_same(alone: Path, other: Path) -> None:
    """The same answers, and the same figures of each step."""
    assert answers(other) == answers(alone)
    found, wanted = figures(other), figures(alone)
    for name in FIGURES:
        assert found[name] == pytest.approx(wanted[name], **TOLERANCE), name


def check_says_something(folder: Path) -> None:
    """Each step has a gradient, and answers to a prompt differ: else all runs would agree."""
    found = figures(folder)
    assert len(found["grad_norm"]) == STEPS and min(found["grad_norm"]) > 1e-3
    assert max(map(abs, found["kl"])) > 1e-4, "the policy has moved away from the reference"
    by_prompt: dict[str, set[str]] = {}
    for answer in answers(folder):
        by_prompt.setdefault(f"{answer['step']} {answer['prompt']}", set()).add(answer["completion"])
    assert len(answers(folder)) == STEPS * 4
    assert sum(map(len, by_prompt.values())) == STEPS * 4, "no answer is given twice"


@pytest.fixture(scope="module")
def untied_model(workspace: Path) -> Path:
    """As `tiny_model`, with a head of its own."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    folder = workspace / "tiny-untied"
    LlamaForCausalLM(tiny_config(tokenizer, tie_word_embeddings=False)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


CUT = (
    *("--max_completion_length", "4", "--mask_truncated_completions", "--top_k", "1", "--max_steps", "2"),
    *("--gradient_checkpointing", "True"),  # without, torch looks for parameters that a process has not used
    *("--reward_funcs", "tests.integration.cut_answers:even_tokens", "--beta", "0.05"),
)


def cells(algorithm: str, *modes: str) -> list[Any]:
    """A mode with each kind of head: the first of them is quick."""
    pairs = [(algorithm, mode, tied) for mode in modes for tied in (False, True)]
    quick = {("grpo", "torchrun", False), ("grpo", "zero3", True), ("ppo", "torchrun", False)}
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in pairs]


@pytest.mark.parametrize(
    ("algorithm", "mode", "tied"),
    [cell for name in ("grpo", "rloo", "ppo") for cell in cells(name, "torchrun", "zero0", "zero1", "zero2", "zero3")],
)
def test_a_process_whose_answers_are_all_cut(
    stage_run: Callable, monkeypatch: pytest.MonkeyPatch, workspace: Path, untied_model: Path,
    algorithm: str, mode: str, tied: bool,
) -> None:  # fmt: skip
    """It has nothing to score, and calls the head with the others. Of PPO's answers one in four trains."""
    monkeypatch.setenv("CUT_ANSWERS", "1,2,3" if algorithm == "ppo" else "2,3")
    group = ("--num_generations", "1") if algorithm == "ppo" else ("--num_generations", "2")
    given = ("--rl_algorithm", algorithm, *group, *CUT, *(() if tied else ("--model_name_or_path", str(untied_model))))
    parts = ("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2") if algorithm == "ppo" else ()
    alone, other = (
        stage_run("rl", "full", where, flags, workspace / f"cut-{algorithm}-{where}-{tied}")
        for where, flags in (("single", given), (mode, (*given, *parts)))
    )
    found, wanted = figures(other.folder), figures(alone.folder)
    assert min(wanted["grad_norm"]) > 1e-3
    for name in FIGURES:
        assert found[name] == pytest.approx(wanted[name], **TOLERANCE), name


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_launch_is_as_one_process(launched_run: Callable, algorithm: str, mode: str) -> None:
    """Under the real launcher, ZeRO 0, 2 and 3, with one process and two; full training."""
    alone = launched_run("rl", "full", "single", flags(algorithm)).folder
    check_says_something(alone)
    check_same(alone, launched_run("rl", "full", mode, flags(algorithm)).folder)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_gradient_that_counts_wrongly_is_noticed(stage_run: Callable, algorithm: str, tmp_path: Path) -> None:
    """The same comparison, with one process's gradients half as large again."""
    alone = stage_run("rl", "full", "single", flags(algorithm)).folder
    wrong = stage_run("rl", "full", "zero2", flags(algorithm, WRONG), tmp_path / "wrong").folder
    with pytest.raises(AssertionError):
        check_same(alone, wrong)
    first = [figures(folder)["grad_norm"][0] for folder in (alone, wrong)]
    assert first[1] != pytest.approx(first[0], rel=0.01)
