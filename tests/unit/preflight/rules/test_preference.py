"""Losses of preferences and of reward models, and options that they do not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.preflight.rules.preference import check_preferences, check_reward


def said(flags: str, *, shared: bool = True, padding_free: bool = True) -> list[str]:
    args = parse_arguments("dpo", ["--output_dir", "o", *flags.split()]).training
    layout = SimpleNamespace(shared_prompts=shared, padding_free=padding_free)
    facts: Any = SimpleNamespace(training_args=args, rows=layout)
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


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--loss_type nonsense", "there is no loss nonsense"),
        ("--loss_type nca_pair --f_divergence_type forward_kl", "whose constant does not cancel"),
        ("--loss_type aot --use_weighting", "sorted answers would get the weights of other pairs"),
        ("--beta 0", "beta 0"),
        ("--loss_type exo_pair", "exo_pair needs a label smoothing above 0"),
        ("--loss_type ipo --normalize_logps", "ipo divides by the length of an answer already"),
        ("--sync_ref_model --precompute_ref_log_probs", "cannot be computed before it"),
        ("--loss_type simpo --sync_ref_model", "no loss looks at a reference"),
        ("--loss_type orpo --ref_model m", "--ref_model / --ref_adapters"),
        ("--ref_model m --sync_ref_model", "renewed by mixing in the policy"),
    ],
)
def test_what_does_not(flags: str, problem: str) -> None:
    (found,) = said(flags)
    assert problem in found


def test_a_padded_row_holds_one_answer() -> None:
    assert "a padded row holds one answer" in said("", padding_free=False)[0]


def test_the_nearest_loss_is_named() -> None:
    assert "did you mean --loss_type sigmoid?" in said("--loss_type sigmiod")[0]


def of_rewards(*flags: str) -> Any:
    return SimpleNamespace(training_args=parse_arguments("rm", ["--output_dir", "o", *flags]).training)


@pytest.mark.parametrize(
    "flags, place",
    [
        (("--label_smoothing_factor", "0.5"), "--label_smoothing"),
        (("--eval_do_concat_batches", "False"), "--eval_do_concat_batches False"),
        (("--reward_kind", "process", "--step_separator", ""), "--step_separator"),
        (("--reward_kind", "process", "--activation_offloading", "True"), "--activation_offloading"),
    ],
)
def test_rewards_that_are_refused(flags: tuple[str, ...], place: str) -> None:
    assert [problem.place for problem in check_reward(of_rewards(*flags))] == [place]


def test_rewards_that_are_fine() -> None:
    flags = ("--label_smoothing", "0.1", "--score_difference", "weight", "--score_difference_scale", "0.1")
    assert not list(check_reward(of_rewards(*flags)))


def test_smoothing_under_the_trainers_name() -> None:
    made = of_rewards("--label_smoothing_factor", "0.2").training_args
    assert (made.label_smoothing, made.label_smoothing_factor) == (0.2, 0.0)
