"""Runs whose model is shared by processes, beside runs in one process: losses, gradient norms and what is saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.architectures import make_model

STEPS, SAVED_AT = 20, 12
TOLERANCE = 1e-4
"""Of losses and gradient norms, relative, in float32."""
TWO = "torchrun --nproc_per_node 2"
FOUR = "torchrun --nproc_per_node 4"
PACKED = {"pt": (), "sft": ("--packing", "True", "--max_length", "128")}
Curve = list[tuple[float, float]]
"""Loss and gradient norm of each step."""


class Runs:
    """Runs by their flags, the same asked for twice made once."""

    def __init__(self, run: Callable, workspace: Path, data: Path) -> None:
        self.run, self.workspace, self.data = run, workspace, data
        self.made: dict[Any, tuple[Curve, Path]] = {}

    def model(self, name: str) -> Path:
        """The tiny random model of an architecture."""
        folder = self.workspace / f"shared-{name}"
        return folder if folder.is_dir() else make_model(name, folder)

    def __call__(
        self, stage: str, name: str, *flags: str, launcher: str = "python", rows: int = 4
    ) -> tuple[Curve, Path]:
        """A run of 20 steps: what each step gave, and its folder.

        Args:
            rows: Of a process's batch; a step has four in all.
            launcher: Forked, unless it is DeepSpeed's own.
        """
        key = (stage, name, flags, launcher)
        if key not in self.made:
            folder = self.workspace / f"shared-run-{len(self.made)}"
            self.start(stage, self.model(name), folder, *flags, launcher=launcher, rows=rows)
            self.made[key] = read_curve(folder), folder
        return self.made[key]

    def start(self, stage: str, model: Path, folder: Path, *flags: str, launcher: str, rows: int) -> None:
        """Run it, and fail with its last words if it does."""
        self.run(
            f"run_{stage}.py",
            *("--model_name_or_path", str(model), "--output_dir", str(folder)),
            *("--train_file_dir", str(self.data / stage), "--validation_file_dir", str(self.data / f"{stage}_eval")),
            *("--per_device_eval_batch_size", "2", "--logging_steps", "1", "--max_steps", str(STEPS)),
            *("--save_steps", str(SAVED_AT), "--learning_rate", "1e-3", "--lr_scheduler_type", "constant"),
            *(("--block_size", "32") if stage == "pt" else ()),
            *("--per_device_train_batch_size", str(rows), *PACKED[stage], *flags),
            launcher=launcher,
            warm=not launcher.startswith("deepspeed"),
        ).check()


def read_curve(folder: Path) -> Curve:
    """(loss, gradient norm) of each step that a run has logged."""
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [(entry["loss"], entry["grad_norm"]) for entry in history if "loss" in entry]


def furthest(curve: Curve, reference: Curve) -> float:
    """The largest relative difference of a loss or gradient norm."""
    assert len(curve) == len(reference) > 0
    assert all(norm > 0.01 for _, norm in reference), "something is trained"
    pairs = [pair for one, other in zip(curve, reference, strict=True) for pair in zip(one, other, strict=True)]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def assert_measured_alike(folder: Path, alone: Path) -> None:
    """Loss, perplexity and token accuracy of held-out records after training."""
    measured, wanted = (json.loads((each / "hftune.json").read_text())["metrics"] for each in (folder, alone))
    for metric in ("eval_loss", "eval_perplexity"):
        assert abs(measured[metric] / wanted[metric] - 1) < TOLERANCE
    accuracy = next(name for name in wanted if name.endswith("token_accuracy"))
    assert abs(measured[accuracy] - wanted[accuracy]) < 1e-6


def assert_saved_alike(folder: Path, alone: Path) -> None:
    """Plain transformers loads what was saved, and its logits are those of the run in one process."""
    for one_of in (folder, folder / f"checkpoint-{SAVED_AT}"):
        one, loading = AutoModelForCausalLM.from_pretrained(one_of, output_loading_info=True)
        assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        other = AutoModelForCausalLM.from_pretrained(alone / one_of.relative_to(folder))
        ids = torch.arange(3, 35).view(2, 16)
        with torch.no_grad():
            # Adam divides by the root of second moments: where those are tiny, rounding grows.
            torch.testing.assert_close(one(ids).logits, other(ids).logits, rtol=2e-3, atol=2e-3)


def cells(every: Iterable[tuple[str, ...]], quick: Collection[tuple[str, ...]]) -> list[Any]:
    """Parameters of a test, all of them slow but a few."""
    return [pytest.param(*cell, marks=() if cell in quick else pytest.mark.slow) for cell in every]


def check_same_run(
    runs: Runs, stage: str, name: str, both: tuple[str, ...], shared: tuple[str, ...], *, rows: int, launcher: str = TWO
) -> None:
    """Losses, gradient norms, what is measured and what is saved are those of one process.

    Args:
        both: Flags of both runs.
        shared: Of the one whose model is shared.
        rows: As for `Runs`, of that one.
    """
    reference, alone = runs(stage, name, *both)
    found, folder = runs(stage, name, *both, *shared, launcher=launcher, rows=rows)
    assert furthest(found, reference) < TOLERANCE
    assert_measured_alike(folder, alone)
    assert_saved_alike(folder, alone)


def check_goes_on(runs: Runs, name: str, shared: tuple[str, ...], folder: Path, *, rows: int, size: str) -> None:
    """From a checkpoint as if it had not stopped; and not without sharing.

    Args:
        size: The argument that says over how many processes.
    """
    whole, before = runs("pt", name, *shared, launcher=TWO, rows=rows)
    going_on, model = ("--resume_from_checkpoint", str(before / f"checkpoint-{SAVED_AT}")), runs.model(name)
    runs.start("pt", model, folder / "rest", *shared, *going_on, launcher=TWO, rows=rows)
    rest = read_curve(folder / "rest")[SAVED_AT:]
    assert len(rest) == STEPS - SAVED_AT
    assert furthest(rest, whole[SAVED_AT:]) < 1e-6
    alone = (flag for number, flag in enumerate(shared) if size not in shared[max(0, number - 1) : number + 1])
    with pytest.raises(AssertionError, match=f"was written with {size} 2, and this run has 1"):
        runs.start("pt", model, folder / "other", *alone, *going_on, launcher=TWO, rows=2)
