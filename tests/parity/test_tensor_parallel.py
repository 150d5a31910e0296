"""Tensor parallelism changes no number: losses and gradient norms of two processes are those of one."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from tests.architectures import few_quick
from tests.parity.shared_models import (
    ACCUMULATED,
    CLIPPED,
    FOUR,
    FROZEN,
    TOLERANCE,
    TWO,
    Runs,
    assert_measured_alike,
    cells,
    check_goes_on,
    check_same_run,
    furthest,
    read_curve,
)


def tensor(zero: str) -> tuple[str, ...]:
    return "--deepspeed", zero, "--tensor_parallel_size", "2"


QUICK = [("sft", "llama", "zero3")]
EVERY = [
    *product(("pt", "sft"), ("llama", "qwen2"), ("zero0", "zero1", "zero2", "zero3")),
    *product(("pt",), ("qwen3", "mistral", "gemma2", "gemma3_text", "gemma", "phi", "ernie4_5"), ("zero1", "zero3")),
    *product(("sft",), ("llama",), ("zero2_offload", "zero3_offload")),
]


@pytest.mark.parametrize(("stage", "name", "zero"), cells(EVERY, QUICK))
def test_two_processes_are_as_one(runs: Runs, stage: str, name: str, zero: str) -> None:
    """Packed; tied and untied heads, biases, fewer key-value heads, norms of heads, soft caps, partial rope."""
    check_same_run(runs, stage, name, (), tensor(zero), rows=4)


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero0", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("stage", ["pt", "sft"])
def test_two_groups_of_two(runs: Runs, stage: str, zero: str) -> None:
    """Each group has rows of its own: half of a step."""
    check_same_run(runs, stage, "llama", (), tensor(zero), rows=2, launcher=FOUR)


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero0", "zero1", "zero2", "zero3"])
def test_clipped_and_accumulated(runs: Runs, zero: str) -> None:
    check_same_run(runs, "sft", "llama", CLIPPED, (*ACCUMULATED, *tensor(zero)), rows=2)


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero1", "zero3"])
@pytest.mark.parametrize(
    ("both", "shared"), [(FROZEN, ()), ((), ("--tiled_mlp", "True")), ((), ("--activation_checkpointing", "full"))]
)
def test_same_run_otherwise(runs: Runs, zero: str, both: tuple[str, ...], shared: tuple[str, ...]) -> None:
    check_same_run(runs, "sft", "llama", both, (*shared, *tensor(zero)), rows=4)


@pytest.mark.slow
def test_noise_is_the_same_in_all_processes(runs: Runs) -> None:
    """What is drawn for activations that all processes hold: as in one process, so the same in each."""
    noise = ("--hidden_dropout_prob", "0.1", "--neftune_noise_alpha", "5")
    reference, _ = runs("pt", "llama", *noise)
    found, _ = runs("pt", "llama", *noise, *tensor("zero1"), launcher=TWO)
    assert furthest(found, reference) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero1", "zero3"])
def test_the_best_checkpoint_is_gone_back_to(runs: Runs, zero: str) -> None:
    """Whole weights go back into split matrices."""
    flags = ("--load_best_model_at_end", "True", "--eval_strategy", "steps", "--eval_steps", "4", "--save_steps", "4")
    rates = ("--learning_rate", "0.05")  # so high that it is not the last
    _, alone = runs("pt", "llama", *flags, *rates)
    _, folder = runs("pt", "llama", *flags, *rates, *tensor(zero), launcher=TWO)
    assert_measured_alike(folder, alone)


@pytest.mark.parametrize("zero", few_quick(["zero0", "zero1", "zero2", "zero3"], ["zero2"]))
def test_it_goes_on_from_a_checkpoint(runs: Runs, tmp_path: Path, zero: str) -> None:
    check_goes_on(runs, "qwen2", tensor(zero), tmp_path, rows=4, size="--tensor_parallel_size")


@pytest.mark.parametrize("stage", ["sft", pytest.param("pt", marks=pytest.mark.slow)])
def test_a_stream_is_sharded_over_groups(runs: Runs, tmp_path: Path, stage: str) -> None:
    """Both processes read the same records; in one process the scripts stream as well."""
    length = ("--block_size", "32") if stage == "pt" else ("--max_length", "96", "--packing", "False")
    flags = ("--streaming", "True", "--save_strategy", "no", *length)
    for name, shared, launcher in (("alone", (), "python"), ("shared", tensor("zero1"), TWO)):
        runs.start(stage, runs.model("llama"), tmp_path / name, *flags, *shared, launcher=launcher, rows=4)
    assert furthest(read_curve(tmp_path / "shared"), read_curve(tmp_path / "alone")) < TOLERANCE
    trained = [
        json.loads((tmp_path / name / "hftune.json").read_text())["trained_tokens"] for name in ("alone", "shared")
    ]
    assert trained[0] == trained[1] > 0


@pytest.mark.slow
def test_under_the_launcher(runs: Runs) -> None:
    """As a user types it; the same numbers as forked."""
    forked, _ = runs("sft", "llama", *tensor("zero3"), launcher=TWO)
    launched, _ = runs("sft", "llama", *tensor("zero3"), launcher="deepspeed --num_gpus 2")
    assert furthest(launched, forked) < 1e-6
