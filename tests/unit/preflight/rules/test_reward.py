"""Rules of run_rm.py."""

from __future__ import annotations

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.arguments.preference import RMArguments
from hftune.preflight.facts import Facts, resolve
from hftune.preflight.rules.reward import check_reward


def facts(*flags: str) -> Facts[RMArguments]:
    return resolve("rm", parse_arguments("rm", ["--output_dir", "o", *flags]))


@pytest.mark.parametrize(
    "flags, place",
    [
        (("--label_smoothing_factor", "0.5"), "--label_smoothing"),
        (("--eval_do_concat_batches", "False"), "--eval_do_concat_batches False"),
        (("--reward_kind", "process", "--step_separator", ""), "--step_separator"),
        (("--reward_kind", "process", "--activation_offloading", "True"), "--activation_offloading"),
    ],
)
def test_refused(flags: tuple[str, ...], place: str) -> None:
    assert [problem.place for problem in check_reward(facts(*flags))] == [place]


def test_fine() -> None:
    flags = ("--label_smoothing", "0.1", "--score_difference", "weight", "--score_difference_scale", "0.1")
    assert not list(check_reward(facts(*flags)))


def test_smoothing_under_the_trainers_name() -> None:
    made = facts("--label_smoothing_factor", "0.2").training_args
    assert (made.label_smoothing, made.label_smoothing_factor) == (0.2, 0.0)
