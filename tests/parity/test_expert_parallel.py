"""Expert parallelism changes no number: losses and gradient norms of two processes are those of one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.parity.shared_models import (
    FOUR,
    SAVED_AT,
    STEPS,
    TOLERANCE,
    TWO,
    Runs,
    assert_measured_alike,
    assert_saved_alike,
    furthest,
    read_curve,
)

UNBALANCED = ("--router_aux_loss_coef", "0")
"""The balance of a batch is no sum over its rows: it is compared between runs that split a step alike."""


@pytest.fixture(scope="module")
def runs(run: Callable, workspace: Path, tiny_data: Path) -> Runs:
    return Runs(run, workspace / "experts", tiny_data)


def experts(zero: str) -> tuple[str, ...]:
    return "--deepspeed", zero, "--expert_parallel_size", "2"


QUICK = [("pt", "mixtral", "zero1"), ("sft", "mixtral", "zero3")]
EVERY = [
    *product(("pt", "sft"), ("mixtral",), ("zero1", "zero2", "zero3")),
    *product(("sft",), ("qwen3_moe", "deepseek_v2", "deepseek_v3"), ("zero1", "zero3")),
]


@pytest.mark.parametrize(
    ("stage", "name", "zero"),
    [pytest.param(*cell, marks=[] if cell in QUICK else [pytest.mark.slow]) for cell in EVERY],
)
def test_two_processes_are_as_one(runs: Runs, stage: str, name: str, zero: str) -> None:
    """Packed; routed and shared experts, routers of softmax and sigmoid, groups of experts."""
    reference, alone = runs(stage, name, *UNBALANCED)
    found, folder = runs(stage, name, *UNBALANCED, *experts(zero), launcher=TWO, rows=2)
    assert furthest(found, reference) < TOLERANCE
    assert_measured_alike(folder, alone)
    assert_saved_alike(folder, alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"])
def test_routers_are_balanced_alike(runs: Runs, name: str) -> None:
    """Against two processes that hold all experts each."""
    balanced = ("--router_aux_loss_coef", "0.5", "--moe_z_loss_coef", "0.1")
    reference, _ = runs("pt", name, *balanced, "--deepspeed", "zero1", launcher=TWO, rows=2)
    found, _ = runs("pt", name, *balanced, *experts("zero1"), launcher=TWO, rows=2)
    assert furthest(found, reference) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero1", "zero2", "zero3"])
def test_two_groups_of_two(runs: Runs, zero: str) -> None:
    """Every expert is in two of four processes, which add up its gradients."""
    reference, alone = runs("pt", "mixtral", *UNBALANCED)
    found, folder = runs("pt", "mixtral", *UNBALANCED, *experts(zero), launcher=FOUR, rows=1)
    assert furthest(found, reference) < TOLERANCE
    assert_saved_alike(folder, alone)


@pytest.mark.parametrize("zero", ["zero1", pytest.param("zero3", marks=pytest.mark.slow)])
def test_it_goes_on_from_a_checkpoint(runs: Runs, tmp_path: Path, zero: str) -> None:
    whole, folder = runs("pt", "mixtral", *UNBALANCED, *experts(zero), launcher=TWO, rows=2)
    going_on = (*UNBALANCED, "--resume_from_checkpoint", str(folder / f"checkpoint-{SAVED_AT}"))
    model = runs.model("mixtral")
    runs.start("pt", model, tmp_path / "rest", *experts(zero), *going_on, launcher=TWO, rows=2)
    rest = read_curve(tmp_path / "rest")[SAVED_AT:]
    assert len(rest) == STEPS - SAVED_AT
    assert furthest(rest, whole[SAVED_AT:]) < 1e-6
    with pytest.raises(AssertionError, match="was written with --expert_parallel_size 2, and this run has 1"):
        runs.start("pt", model, tmp_path / "other", "--deepspeed", zero, *going_on, launcher=TWO, rows=2)
