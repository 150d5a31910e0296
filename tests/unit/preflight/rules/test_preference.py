"""Losses of preferences and of reward models, and options that they do not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.losses.preference import LOSSES
from hftune.preflight.rules.preference import check_preferences, check_reward


def said(flags: str, *, shared: bool = True, padding_free: bool = True) -> list[str]:
    args = parse_arguments("dpo", ["--output_dir", "o", *flags.split()]).training
    args.shared_prompts, args.padding_free = shared, padding_free
    facts: Any = SimpleNamespace(training_args=args, arguments=(args,))
    return [str(problem) for problem in check_preferences(facts)]


@pytest.mark.parametrize(
    "flags",
    [
        "--label_smoothing 0.1 --offset_alpha 1.0",
        "--loss_type exo_pair --label_smoothing 1e-3",
        "--loss_type sigmoid sft --f_divergence_type js_divergence",
        "--loss_type ipo --sync_ref_model",
    ],
)
def test_what_fits_together(flags: str) -> None:
    assert said(flags) == said(flags, shared=False, padding_free=False) == []


def test_each_loss_can_be_asked_for_by_erniekits_names_too() -> None:
    erniekits = ("sigmoid", "hinge", "ipo", "kto_pair", "sppo_hard", "nca_pair", "dpop", "or", "simpo")
    for name in (*LOSSES, *erniekits):
        smoothing = " --label_smoothing 0.1" if name == "exo_pair" else ""
        assert said(f"--loss_type {name}{smoothing}") == [], name


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--loss_type nonsense", "there is no loss nonsense"),
        ("--loss_type nca_pair --f_divergence_type forward_kl", "whose constant does not cancel"),
        ("--loss_type aot --use_weighting", "sorted answers would get the weights of other pairs"),
        ("--loss_type ipo --normalize_logps", "ipo divides by the length of an answer already"),
        ("--ref_model m --sync_ref_model", "renewed by mixing in the policy"),
    ],
)
def test_what_does_not(flags: str, problem: str) -> None:
    (found,) = said(flags)
    assert problem in found


def test_the_nearest_loss_is_named() -> None:
    assert "did you mean --loss_type sigmoid?" in said("--loss_type sigmiod")[0]


def of_rewards(*flags: str) -> Any:
    args = parse_arguments("rm", ["--output_dir", "o", *flags]).training
    return SimpleNamespace(training_args=args, arguments=(args,))


def test_rewards_that_are_refused() -> None:
    assert [problem.place for problem in check_reward(of_rewards("--label_smoothing_factor", "0.5"))] == [
        "--label_smoothing"
    ]


def test_rewards_that_are_fine() -> None:
    flags = ("--label_smoothing", "0.1", "--score_difference", "weight", "--score_difference_scale", "0.1")
    assert not list(check_reward(of_rewards(*flags)))


def test_smoothing_under_the_trainers_name() -> None:
    made = of_rewards("--label_smoothing_factor", "0.2").training_args
    assert (made.label_smoothing, made.label_smoothing_factor) == (0.2, 0.0)
