"""What an optimizer or schedule would ignore or change is refused, with the way out."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.preflight.rules.optimizer import check_optimizer, check_schedule
from tests.unit.preflight import said

ZERO = '{"zero_optimization": {"stage": %d}}'
OFFLOAD = '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.machinery.ModuleSpec("any", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def problems(*flags: str) -> str:
    return said.problems("m", "--learning_rate", "1e-4", *flags, rules=(check_optimizer, check_schedule))


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--optim", "muon"],
        ["--optim", "muon", "--deepspeed", ZERO % 3, "--max_grad_norm", "0"],
        ["--optim", "adamw_8bit", "--deepspeed", ZERO % 2],
        ["--optim", "adafactor"],
        ["--optim", "adafactor", "--deepspeed", ZERO % 0],
        ["--deepspeed", '{"bf16": {"enabled": "auto"}}'],
        ["--deepspeed", '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}}', "--bf16"],
        ["--optim", "sgd", "--deepspeed", OFFLOAD, "--optim_args", "momentum=0.9, nesterov=true"],
        ["--use_peft", "--loraplus_lr_ratio", "16", "--loraplus_lr_embedding", "1e-5"],
        ["--layerwise_lr_decay_bound", "0.5"],
    ],
)
def test_nothing_to_say(flags: list[str]) -> None:
    assert problems(*flags) == ""


@pytest.mark.parametrize(
    "flags, part",
    [
        (["--optim", "lomo"], "updates each weight inside the backward pass"),
        (["--optim_args", "momentum=0.9"], "adamw_torch_fused does not take momentum"),
        (["--optim", "sgd", "--optim_args", "momentun=0.9"], "it takes momentum, dampening, nesterov"),
        (["--optim", "sgd", "--optim_args", "weight_decay=0.1"], "use --weight_decay"),
        (["--optim", "sgd", "--optim_args", "momentum"], "has no value"),
    ],
)
def test_a_rule_each(all_installed: None, flags: list[str], part: str) -> None:
    assert part in problems(*flags)


def test_check_run_asks(tiny_model: Path) -> None:
    flags = ("--optim", "lomo", "--lr_scheduler_type", "linear", "--lr_scheduler_kwargs", '{"num_cycles": 3}')
    assert "2 problems" in said.problems(tiny_model, *flags)


_ARGS = {
    **{"schedule": "linear", "learning_rate": 1e-3, "optim_name": "adamw_torch", "warmup_steps": 0.0},
    **dict.fromkeys(("min_lr", "lr_scheduler_kwargs", "num_cycles", "lr_end", "power", "lr_wsd_decay_steps")),
    "lr_decay_steps": None,
}


def of_schedule(schedule: str = "linear", **args: Any) -> list[str]:
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
    assert of_schedule(schedule, **args) == []


@pytest.mark.parametrize(
    ("schedule", "args", "problem"),
    [
        ("linear", {"lr_scheduler_kwargs": {"cycles": 3}}, "linear does not take cycles"),
        ("constant", {"lr_scheduler_kwargs": {"x": 1}}, "constant does not take x"),
        ("cosine", {"num_cycles": 2.0, "lr_scheduler_kwargs": {"num_cycles": 3}}, "num_cycles is given twice"),
    ],
)
def test_what_does_not(schedule: str, args: dict[str, Any], problem: str) -> None:
    assert any(problem in each for each in of_schedule(schedule, **args)), of_schedule(schedule, **args)
