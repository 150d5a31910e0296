"""RL's settings: what does not go together is refused before a model loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.preflight.rules import rl
from hftune.preflight.rules.rl import _check_dynamic_sampling
from hftune.preflight.rules.without_effect import check_without_effect
from tests.unit.preflight.said import problems

FUNCTION = ["--reward_funcs", "length"]
HELD_OUT = ["--validation_split_percentage", "10"]


def said(model: Path, algorithm: str, *flags: str) -> str:
    asked = (rl.check_rl, check_without_effect)
    return problems(model, "--rl_algorithm", algorithm, *flags, stage="rl", rules=asked)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "ppo", "online_dpo"])
def test_nothing_to_say(tiny_model: Path, algorithm: str) -> None:
    assert said(tiny_model, algorithm, *FUNCTION) == ""


@pytest.mark.parametrize(
    "algorithm, flags, parts",
    [
        ("ppo", [], ["RL needs a reward", "--reward_model_path"]),
        ("online_dpo", [*FUNCTION, "--temperature", "0"], ["all answers to a prompt are the same", "above 0"]),
        ("grpo", [*FUNCTION, "--reward_weights", "1", "2"], ["2 weights for 1 rewards"]),
        ("grpo", [*FUNCTION, *HELD_OUT, "--per_device_eval_batch_size", "2"], ["answered 8 times each", "2 answers"]),
        ("ppo", [*FUNCTION, "--lam", "1.5"], ["--lam", "from 0 to 1"]),
        ("online_dpo", [*FUNCTION, "--epsilon", "0.1"], ["--epsilon", "leave it out"]),
        ("grpo", [*FUNCTION, "--dynamic_sampling", "--max_sampling_rounds", "0"], ["--max_sampling_rounds"]),
        ("grpo", ["--reward_funcs", "length", "--reward_retries", "2"], ["reward functions of your own"]),
        ("grpo", [*FUNCTION, "--reward_timeout", "0"], ["--reward_timeout", "above 0"]),
        ("rloo", [*FUNCTION, "--dynamic_sampling"], ["it belongs to --rl_algorithm grpo"]),
        ("ppo", [*FUNCTION, "--tools", "m:f"], ["it belongs to --rl_algorithm grpo"]),
        ("grpo", [*FUNCTION, "--vf_coef", "1"], ["it belongs to --rl_algorithm ppo"]),
        ("ppo", [*FUNCTION, "--generation_batch_size", "3"], ["no multiple of", "--generation_batch_size"]),
        ("ppo", [*FUNCTION, "--num_generations", "3"], ["no multiple of 3", "--num_generations"]),
    ],
)
def test_what_cannot_work(tiny_model: Path, algorithm: str, flags: list[str], parts: list[str]) -> None:
    found = said(tiny_model, algorithm, *flags)
    assert all(part in found for part in parts), found


@pytest.mark.parametrize(
    ("flags", "accumulated", "what"),
    [
        (["--loss_type", "bnpo"], "2", "--loss_type bnpo, a mean over tokens (dapo's is over the whole step)"),
        (["--loss_type", "bnpo"], "1", ""),
        (["--loss_type", "dapo"], "2", ""),
        (["--entropy_coef", "0.1"], "2", "--entropy_coef, a mean"),
        (["--use_adaptive_entropy", "True"], "2", "--entropy_coef, a mean"),
        (["--top_entropy_quantile", "0.5"], "2", "--top_entropy_quantile, a quantile"),
        (["--top_entropy_quantile", "0.5"], "1", ""),
    ],
)
def test_a_loss_that_depends_on_the_cut_is_said(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], accumulated: str, what: str
) -> None:
    found: list[str] = []
    monkeypatch.setattr(rl, "notice", found.append)
    cut = ["--per_device_train_batch_size", "8", "--gradient_accumulation_steps", accumulated]
    assert said(tiny_model, "grpo", *FUNCTION, *flags, *cut) == ""
    assert [one.partition(",")[0] for one in found] == ([what.partition(",")[0]] if what else [])
    assert all(one.startswith(what) and "micro batch" in one for one in found)


def test_the_quantile_is_that_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(rl, "notice", found.append)
    flags = ["--output_dir", "o", "--rl_algorithm", "grpo", "--gradient_accumulation_steps", "1"]
    for more in (["--top_entropy_quantile", "0.5"], ["--loss_type", "bnpo"]):
        *_, args = parse_arguments("rl", [*flags, *more])
        rl._say_means_of_micro_batches(args, 2)
    assert [one.split()[1] for one in found] == ["bnpo,"]


def test_groups_that_dynamic_sampling_replaces_are_whole_on_a_process() -> None:
    """Two processes with four answers each, of which eight are a group."""
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--dynamic_sampling", "--per_device_train_batch_size"]
    args = parse_arguments("rl", [*argv, "8", "--num_generations", "8"])[3]
    assert not list(_check_dynamic_sampling(args))
    args.per_device_train_batch_size = 4
    (problem,) = _check_dynamic_sampling(args)
    assert "groups of 8 answers do not fit into the 4 of a process" in str(problem)


def test_a_variant_sets_what_its_paper_sets_and_leaves_what_was_given() -> None:
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--grpo_variant", "dapo", "--beta", "0.01"]
    args = parse_arguments("rl", argv)[3]
    assert (args.loss_type, args.epsilon_high, args.mask_truncated_completions) == ("dapo", 0.28, True)
    assert args.beta == 0.01 and args.dynamic_sampling
    args = parse_arguments("rl", [*argv, "--mask_truncated_completions", "False", "--dynamic_sampling", "False"])[3]
    assert not args.mask_truncated_completions and not args.dynamic_sampling, "defaults that were given stay"


def test_ppo_takes_one_answer_a_prompt_and_its_mini_batches() -> None:
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--rl_algorithm", "ppo", "--num_mini_batches", "3"]
    args = parse_arguments("rl", [*argv, "--per_device_train_batch_size", "5", "--gradient_accumulation_steps", "2"])[3]
    assert (args.num_generations, args.steps_per_generation, args.generation_batch_size) == (1, 6, 30)
    args = parse_arguments("rl", [*argv, "--per_device_train_batch_size", "5", "--generation_batch_size", "20"])[3]
    assert (args.steps_per_generation, args.generation_batch_size) == (4, 20)
