"""What hftune's loop of answers rests on in TRL, and what it adds: samples, orders that go on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from hftune.data.rendering import Renderer
from hftune.data.turn_tokens import TurnTokenGuard
from hftune.errors import ArgumentError
from hftune.models.decoding import Drawn
from hftune.trainers.online.base import is_reference
from tests.unit.trainers.rl_runs import count_even, drawn, logged, make_trainer

SMALL = ("--per_device_train_batch_size", "4", "--max_completion_length", "4", "--num_generations", "2")


def count_odd(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The opposite."""
    return [1 - share for share in count_even(completion_ids)]


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_reward_of_weight_0_is_logged_and_not_trained_on(algorithm: str, tiny_model: Path, tmp_path: Path) -> None:
    flags = (*SMALL, "--max_steps", "2", "--sample_completions", "3", "--num_iterations", "1")
    flags += ("--reward_weights", "1", "0")
    trainer = make_trainer(tiny_model, tmp_path, algorithm, [count_even, count_odd], *flags)
    trainer.train()
    rewards, judged = logged(trainer, "reward"), logged(trainer, "rewards/count_odd/mean")
    assert [reward + judge for reward, judge in zip(rewards, judged, strict=True)] == pytest.approx([1.0, 1.0])
    samples = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [1, 1, 1, 2, 2, 2]
    assert set(samples[0]["rewards"]) == {"count_even", "count_odd"}


def test_answers_are_kept_to_the_letter_as_they_were_rewarded(tiny_model: Path, tmp_path: Path) -> None:
    def letters(completions: list[Any], **_: Any) -> list[float]:
        return [float(len(completion[0]["content"])) for completion in completions]

    make_trainer(tiny_model, tmp_path, "grpo", letters, *SMALL, "--max_steps", "2", "--sample_completions", "8").train()
    samples = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text().splitlines()]
    assert any(sample["completion"].endswith("\ufffd") for sample in samples), "tokens are bytes here: halves are said"
    assert all(len(sample["completion"]) == sample["rewards"]["letters"] for sample in samples)


def test_several_rewards_are_weighted_and_none_means_not_mine(tiny_model: Path, tmp_path: Path) -> None:
    def only_the_first(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        return [1.0 if place == 0 else None for place in range(len(completion_ids))]

    flags = ("--per_device_train_batch_size", "4", "--max_completion_length", "4", "--reward_weights", "2.0", "0.5")
    trainer = make_trainer(tiny_model, tmp_path, "ppo", [count_even, only_the_first], *flags, "--beta", "0")
    trainer.model.train()
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in "abcd"]
    answers = trainer.answer(rows)
    ids = [row[mask.bool()].tolist() for row, mask in zip(answers.completion_ids, answers.completion_mask, strict=True)]
    wanted = [2 * share + 0.5 * (place == 0) for place, share in enumerate(count_even(ids))]
    assert answers.scores.tolist() == pytest.approx(wanted)
    assert answers.scored.all()


def test_answers_that_no_function_scores_train_nothing(tiny_model: Path, tmp_path: Path) -> None:
    def half(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        return [1.0 if place % 2 else None for place in range(len(completion_ids))]

    flags = ("--per_device_train_batch_size", "4", "--max_completion_length", "4")
    trainer = make_trainer(tiny_model, tmp_path, "ppo", half, *flags)
    batch = drawn(trainer, *"abcd")
    assert batch["mask"].any(dim=1).tolist() == [False, True, False, True]
    assert not batch["advantages"][~batch["mask"].bool()].any()
    shown = trainer._logs["advantages"]
    assert [math.isnan(value) for value in shown] == [True, False, True, False]
    assert [shown[1], shown[3]] == pytest.approx(batch["advantages"][1::2, 0].tolist()), "as they are trained on"
    # Policy and reference are one model still: the reward of a scored answer is all there is.
    assert trainer._metrics["train"]["reward_with_kl"] == [pytest.approx(1.0)]


def test_fewer_prompts_than_a_batch_takes_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    flags = ("--per_device_train_batch_size", "64", "--num_generations", "2")
    with pytest.raises(ArgumentError, match="4 prompts, and a batch of answers is drawn for 32"):
        make_trainer(tiny_model, tmp_path, "grpo", count_even, *flags)
    make_trainer(tiny_model, tmp_path, "grpo", count_even, *flags, "--per_device_train_batch_size", "8")


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_turn_borders_in_prompts_stay_text(algorithm: str, tiny_model: Path, tmp_path: Path) -> None:
    """By the tokenizer's own template, in what the policy is asked; with `allow` they become tokens."""
    numbers = {}
    for mode in ("split", "allow"):
        flags = (*SMALL, "--max_steps", "1", "--borders_in_text", mode)
        trainer = make_trainer(tiny_model, tmp_path / mode, algorithm, count_even, *flags)
        tokenizer = trainer.processing_class
        border = TurnTokenGuard(tokenizer, "split", Renderer(tokenizer)).tokens[-1]
        asked = [[{"role": "user", "content": text}] for text in (f"a{border}b", "ab")]
        forged, plain = trainer._tokenize_prompts(asked)[0]
        index = tokenizer.convert_tokens_to_ids(border)
        numbers[mode] = forged.count(index) - plain.count(index)
        assert tokenizer.decode(forged) == tokenizer.apply_chat_template(
            asked[0], tokenize=False, add_generation_prompt=True
        )
        assert trainer.processing_class is tokenizer
    assert numbers == {"split": 0, "allow": 1}


@pytest.mark.parametrize(
    ("algorithm", "passes"),
    [*(pytest.param(name, 0, marks=pytest.mark.slow) for name in ("rloo", "online_dpo")), ("grpo", 0), ("ppo", 1)],
)
def test_what_drawing_says_of_an_answer_is_not_computed_again(
    algorithm: str, passes: int, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PPO needs the critic's values of these passes; GRPO asks for old log-probabilities in a second pass alone."""
    flags = ("--per_device_train_batch_size", "4", "--num_generations", "2", "--max_completion_length", "6")
    flags += ("--max_steps", "1", "--learning_rate", "1e-3", "--use_peft", "True", "--dtype", "float32", "--seed", "3")
    flags += ("--num_iterations", "2") if algorithm == "grpo" else ()
    monkeypatch.setattr("hftune.models.kernels.heads._head_is_all", lambda *_: True)  # its trial is a pass, too
    runs = []
    for name in ("known", "computed"):
        if name == "computed":
            monkeypatch.setattr(Drawn, "log_probs_of", lambda *_: None)
        trainer = make_trainer(tiny_model, tmp_path / name, algorithm, count_even, *flags)
        asked: list[bool] = []
        trainer.accelerator.unwrap_model(trainer.model).base_model.model.model.register_forward_pre_hook(
            lambda module, args, kwargs, run=trainer, asked=asked: asked.append(
                not torch.is_grad_enabled() and kwargs.get("past_key_values") is None and not is_reference(run.model)
            ),
            with_kwargs=True,
        )
        trainer.train()
        runs.append((sum(asked), trainer))
    known, computed = runs
    # The proof of rows that share prompts makes as many passes in both.
    assert computed[0] - known[0] == 1 - passes
    for name in ("loss", "kl", "reward", "entropy"):
        assert logged(known[1], name) == pytest.approx(logged(computed[1], name), abs=1e-5), name
    assert known[1].drawn is None or passes


@pytest.mark.parametrize("variant", ["grpo", "reinforce_plus_plus"])
def test_an_answer_without_a_score_is_in_no_figure(variant: str, tiny_model: Path, tmp_path: Path) -> None:
    """Rewards 0 2 | None 1: less the means of their prompts -1 1 | 0, of deviation 1; the second teaches nothing."""

    def by_place(prompts: list[Any], **_: Any) -> list[float | None]:
        return [0.0, 2.0, None, 1.0][: len(prompts)]

    # What another one says of it, which is only logged, changes nothing.
    flags = (*SMALL, "--max_steps", "1", "--grpo_variant", variant, "--reward_weights", "1", "0")
    trainer = make_trainer(tiny_model, tmp_path, "grpo", [by_place, count_even], *flags)
    trainer.model.train()
    rows = [trainer.train_dataset[row] for row in (0, 0, 1, 1)]
    advantages = trainer._generate_and_score_completions(rows)["advantages"].tolist()
    own = 2**-0.5 if variant == "grpo" else 1.0
    assert advantages == pytest.approx([-own, own, 0.0, 0.0], abs=1e-3)
    assert list(trainer._logs["advantages"]) == pytest.approx(advantages)
    metrics = trainer._metrics["train"]
    assert metrics["reward"] == [1.0] and metrics["frac_reward_zero_std"] == [0.5]
