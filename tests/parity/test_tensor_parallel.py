"""Tensor parallelism changes no number: losses and gradient norms of two processes are those of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.architectures import make_model

STEPS, SAVED_AT = 20, 12
TOLERANCE = 1e-4
"""Of losses and gradient norms, relative, in float32."""
PACKED = {"pt": (), "sft": ("--packing", "True", "--max_length", "128")}
Curve = list[tuple[float, float]]


def train(run: Callable, stage: str, model: Path, data: Path, folder: Path, *flags: str, launcher: str) -> Curve:
    """(loss, gradient norm) of each step of a run with four rows a step; forked unless a launcher is named."""
    processes = int(launcher.split()[-1]) if launcher != "python" else 1
    run(
        f"run_{stage}.py",
        *("--model_name_or_path", str(model), "--output_dir", str(folder)),
        *("--train_file_dir", str(data / stage), "--validation_file_dir", str(data / f"{stage}_eval")),
        *("--per_device_eval_batch_size", "2", "--logging_steps", "1", "--max_steps", str(STEPS)),
        *("--save_steps", str(SAVED_AT), "--learning_rate", "1e-3", "--lr_scheduler_type", "constant"),
        *(("--block_size", "32") if stage == "pt" else ()),
        *("--per_device_train_batch_size", str(4 // max(1, processes // 2)), *flags),
        launcher=launcher,
        warm=not launcher.startswith("deepspeed"),
    ).check()
    return read_curve(folder)


def read_curve(folder: Path) -> Curve:
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [(entry["loss"], entry["grad_norm"]) for entry in history if "loss" in entry]


def furthest(curve: Curve, reference: Curve) -> float:
    """The largest relative difference of a loss or gradient norm."""
    assert len(curve) == len(reference) > 0
    assert all(norm > 0.01 for _, norm in reference), "something is trained"
    pairs = [pair for one, other in zip(curve, reference, strict=True) for pair in zip(one, other, strict=True)]
    return max(abs(a - b) / abs(b) for a, b in pairs)


@pytest.fixture(scope="module")
def curves(run: Callable, workspace: Path, tiny_data: Path) -> Callable[..., tuple[Curve, Path]]:
    """A run, the same asked for twice made once."""
    made: dict[Any, tuple[Curve, Path]] = {}

    def once(stage: str, name: str, *flags: str, launcher: str = "python", **changes: Any) -> tuple[Curve, Path]:
        key = (stage, name, flags, launcher, *sorted(changes.items()))
        if key not in made:
            model = workspace / "-".join(["tp", name, *(f"{k}={v}" for k, v in changes.items())])
            if not model.is_dir():
                make_model(name, model, **changes)
            folder = workspace / f"tp-run-{len(made)}"
            packed = PACKED[stage]
            made[key] = train(run, stage, model, tiny_data, folder, *packed, *flags, launcher=launcher), folder
        return made[key]

    return once


def tensor(zero: str, size: int = 2) -> tuple[str, ...]:
    return "--deepspeed", zero, "--tensor_parallel_size", str(size)


TWO = "torchrun --nproc_per_node 2"
FOUR = "torchrun --nproc_per_node 4"
QUICK = [("pt", "qwen2", "zero1"), ("sft", "llama", "zero3")]
EVERY = [
    *product(("pt", "sft"), ("llama", "qwen2"), ("zero0", "zero1", "zero2", "zero3")),
    *product(("pt",), ("qwen3", "mistral", "gemma2", "gemma3_text", "gemma", "phi", "ernie4_5"), ("zero1", "zero3")),
    *product(("sft",), ("llama",), ("zero2_offload", "zero3_offload")),
]


@pytest.mark.parametrize(
    ("stage", "name", "zero"),
    [pytest.param(*cell, marks=[] if cell in QUICK else [pytest.mark.slow]) for cell in EVERY],
)
def test_two_processes_are_as_one(curves: Callable, stage: str, name: str, zero: str) -> None:
    """Packed; tied and untied heads, biases, fewer key-value heads, norms of heads, soft caps, partial rope."""
    reference, alone = curves(stage, name)
    found, folder = curves(stage, name, *tensor(zero), launcher=TWO)
    assert furthest(found, reference) < TOLERANCE
    # Held out, after training: loss and token accuracy.
    wanted, measured = (json.loads((each / "hftune.json").read_text())["metrics"] for each in (alone, folder))
    for metric in ("eval_loss", "eval_perplexity"):
        assert measured[metric] == pytest.approx(wanted[metric], rel=TOLERANCE)
    accuracy = next(name for name in wanted if name.endswith("token_accuracy"))
    assert measured[accuracy] == pytest.approx(wanted[accuracy], abs=1e-6)
    assert_saved_alike(folder, alone)
    assert_saved_alike(folder / f"checkpoint-{SAVED_AT}", alone / f"checkpoint-{SAVED_AT}")


def assert_saved_alike(folder: Path, alone: Path) -> None:
    """Plain transformers loads what was saved, and its logits are those of the run in one process."""
    one, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    other = AutoModelForCausalLM.from_pretrained(alone)
    ids = torch.arange(3, 35).view(2, 16)
    with torch.no_grad():
        # Adam divides by the root of second moments: where those are tiny, rounding grows.
        torch.testing.assert_close(one(ids).logits, other(ids).logits, rtol=2e-3, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("zero", ["zero0", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("stage", ["pt", "sft"])
def test_two_groups_of_two(curves: Callable, stage: str, zero: str) -> None:
    """Each group has rows of its own: half of a step."""
    reference, alone = curves(stage, "llama")
    found, folder = curves(stage, "llama", *tensor(zero), launcher=FOUR)
    assert furthest(found, reference) < TOLERANCE
    assert_saved_alike(folder, alone)


@pytest.mark.parametrize(
    "zero", ["zero2", *(pytest.param(zero, marks=pytest.mark.slow) for zero in ("zero0", "zero1", "zero3"))]
)
def test_it_goes_on_from_a_checkpoint(
    curves: Callable, run: Callable, tiny_data: Path, tmp_path: Path, workspace: Path, zero: str
) -> None:
    whole, folder = curves("pt", "qwen2", *tensor(zero), launcher=TWO)
    checkpoint = folder / f"checkpoint-{SAVED_AT}"
    flags = (*tensor(zero), "--resume_from_checkpoint", str(checkpoint))
    model = workspace / "tp-qwen2"
    rest = train(run, "pt", model, tiny_data, tmp_path / "rest", *flags, launcher=TWO)[SAVED_AT:]
    assert len(rest) == STEPS - SAVED_AT
    assert furthest(rest, whole[SAVED_AT:]) < 1e-6
    with pytest.raises(AssertionError, match="was written with --tensor_parallel_size 2, and this run has 1"):
        flags = ("--deepspeed", zero, "--resume_from_checkpoint", str(checkpoint))
        train(run, "pt", model, tiny_data, tmp_path / "other", *flags, launcher=TWO)


def test_under_the_launcher(curves: Callable) -> None:
    """As a user types it; the same numbers as forked."""
    forked, _ = curves("sft", "llama", *tensor("zero3"), launcher=TWO)
    launched, _ = curves("sft", "llama", *tensor("zero3"), launcher="deepspeed --num_gpus 2")
    assert furthest(launched, forked) < 1e-6
