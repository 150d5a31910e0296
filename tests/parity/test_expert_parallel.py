"""Expert parallelism changes no number: losses and gradient norms of two processes are those of one."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.parity.shared_models import (
    ACCUMULATED,
    CLIPPED,
    FOUR,
    FROZEN,
    TOLERANCE,
    TWO,
    Runs,
    cells,
    check_goes_on,
    check_same_run,
    furthest,
)

UNBALANCED = ("--router_aux_loss_coef", "0")
"""The balance of a batch is no sum over its rows: it is compared between runs that split a step alike."""


def experts(zero: str) -> tuple[str, ...]:
    return "--deepspeed", zero, "--expert_parallel_size", "2"


QUICK = [("sft", "mixtral", "zero3")]
EVERY = [
    *product(("pt", "sft"), ("mixtral",), ("zero1", "zero2", "zero3")),
    *product(("sft",), ("qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"), ("zero1", "zero3")),
]


@pytest.mark.parametrize(("stage", "name", "zero"), cells(EVERY, QUICK))
def test_two_processes_are_as_one(runs: Runs, stage: str, name: str, zero: str) -> None:
    """Packed; routed and shared experts, routers of softmax and sigmoid, shares that add up to 1 or do not."""
    check_same_run(runs, stage, name, UNBALANCED, experts(zero), rows=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"])
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
    check_same_run(runs, "pt", "mixtral", UNBALANCED, experts(zero), rows=1, launcher=FOUR)


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero1", "zero2", "zero3"])
def test_clipped_and_accumulated(runs: Runs, zero: str) -> None:
    check_same_run(runs, "sft", "mixtral", (*UNBALANCED, *CLIPPED), (*ACCUMULATED, *experts(zero)), rows=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zero", "both", "shared"),
    [
        ("zero1", FROZEN, ()),
        ("zero1", (), ("--activation_checkpointing", "full")),
        ("zero3", (), ("--activation_checkpointing", "full")),
    ],
)
def test_same_run_otherwise(runs: Runs, zero: str, both: tuple[str, ...], shared: tuple[str, ...]) -> None:
    check_same_run(runs, "sft", "mixtral", (*UNBALANCED, *both), (*shared, *experts(zero)), rows=2)


@pytest.mark.parametrize("zero", ["zero1", pytest.param("zero3", marks=pytest.mark.slow)])
def test_it_goes_on_from_a_checkpoint(runs: Runs, tmp_path: Path, zero: str) -> None:
    check_goes_on(runs, "mixtral", (*UNBALANCED, *experts(zero)), tmp_path, rows=2, size="--expert_parallel_size")
