"""Flags of the learning-rate schedule that exclude each other, or that nobody reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.preflight.rules.optimizer import check_schedule

_ARGS = {
    **{"schedule": "linear", "learning_rate": 1e-3, "optim_name": "adamw_torch", "warmup_steps": 0.0},
    **dict.fromkeys(("min_lr", "lr_scheduler_kwargs", "num_cycles", "lr_end", "power", "lr_wsd_decay_steps")),
    "lr_decay_steps": None,
}


def said(schedule: str = "linear", **args: Any) -> list[str]:
    facts: Any = SimpleNamespace(training_args=SimpleNamespace(**{**_ARGS, "schedule": schedule, **args}))
    return [str(problem) for problem in check_schedule(facts)]


@pytest.mark.parametrize(
    ("schedule", "args"),
    [
        ("linear", {}),
        ("cosine", {"min_lr": 1e-4, "num_cycles": 2.0}),
        ("constant", {"min_lr": 0.0}),
        ("polynomial", {"lr_end": 1e-5, "power": 2.0}),
        ("polynomial", {"min_lr": 1e-5, "lr_end": 1e-5}),
        ("cosine_with_min_lr", {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}}),
        ("warmup_stable_decay", {"lr_wsd_decay_steps": 5, "lr_scheduler_kwargs": {"num_stable_steps": 3}}),
        ("reduce_lr_on_plateau", {"lr_scheduler_kwargs": {"factor": 0.5}}),
        ("constant", {"optim_name": "schedule_free_adamw", "warmup_steps": 10}),
    ],
)
def test_what_fits_together(schedule: str, args: dict[str, Any]) -> None:
    assert said(schedule, **args) == []


@pytest.mark.parametrize(
    ("schedule", "args", "problem"),
    [
        ("cosine_with_min_lr", {}, "cosine_with_min_lr needs its end"),
        ("cosine", {"min_lr": 2e-3}, "is not between 0 and the learning rate"),
        ("cosine", {"min_lr": -1.0}, "is not between 0 and the learning rate"),
        ("constant", {"min_lr": 1e-4}, "never comes down to a lowest rate"),
        ("cosine", {"min_lr": 1e-4, "lr_scheduler_kwargs": {"min_lr": 1e-4}}, "the lowest rate is given twice"),
        ("greedy", {"warmup_steps": 5, "optim_name": "x"}, "greedy does not read --warmup_steps"),
        ("polynomial", {"min_lr": 1e-4, "lr_end": 1e-5}, "the end is given twice"),
        ("polynomial", {"lr_end": 1e-3}, "which is not below the learning rate"),
        ("polynomial", {"learning_rate": 1e-8}, "polynomial ends at 1e-07"),
        ("linear", {"lr_scheduler_kwargs": {"cycles": 3}}, "linear does not take cycles"),
        ("constant", {"lr_scheduler_kwargs": {"x": 1}}, "constant does not take x"),
        ("cosine", {"num_cycles": 2.0, "lr_scheduler_kwargs": {"num_cycles": 3}}, "num_cycles is given twice"),
        ("linear", {"optim_name": "schedule_free_adamw"}, "replaces the schedule, and linear would come on top"),
        ("constant", {"optim_name": "schedule_free_sgd", "warmup_steps": 0.1}, "takes its warm-up in steps"),
    ],
)
def test_what_does_not(schedule: str, args: dict[str, Any], problem: str) -> None:
    assert any(problem in each for each in said(schedule, **args)), said(schedule, **args)
