"""Losses, gradient norms, rates and batches of every stage, step by step, as they were when they were written down.

    make golden        writes them anew: for a change that is meant to change numbers

A file holds the runs of one stage with one model. On the machine that wrote them they come out to the last bit. Other
processors add in another order, and over the steps that grows: `TOLERANCE`. The order of records and the rates do
not depend on the processor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hftune.tools.reporting.progress import read_progress
from tests.parity.shared_models import cells

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
WRITE = bool(os.environ.get("HFTUNE_WRITE_GOLDEN"))
TOLERANCE = 1e-3
"""Relative, of losses and gradient norms."""
EXACT = 1e-12
"""Of rates, and of the digests of batches, which are whole numbers of 40 bits."""
STEPS, LARGE_STEPS = 20, 5
FIGURES = {"loss": TOLERANCE, "grad_norm": TOLERANCE, "learning_rate": EXACT, "batch": EXACT}
SMALLEST = 1e-2
"""Differences of smaller figures are measured against this: the first loss of RL is 0 but for rounding."""
DATA = {"pt": "pt", "sft": "sft", "rm": "pairs", "dpo": "pairs", "rl": "prompts", "distill": "sft"}
OWN: dict[str, tuple[str, ...]] = {
    "pt": ("--block_size", "32"),
    # The same answers on any number of processes.
    "rl": (
        *("--reward_funcs", "tests.integration.fixed_answers:even_tokens", "--top_k", "1", "--num_generations", "4"),
        *("--beta", "0.05", "--max_completion_length", "8"),
    ),
    "distill": ("--distill_mode", "offline"),
}
MODES = {
    "alone": (1, ()),
    "zero2": (2, ("--deepspeed", "zero2")),
    "zero3": (2, ("--deepspeed", "zero3")),
}
QUICK = {("sft", "alone"), ("dpo", "zero2"), ("pt", "zero3")}
EVERY = [(stage, mode) for stage in DATA for mode in MODES]
LARGE = [*((stage, "alone") for stage in DATA), ("sft", "zero2"), ("sft", "zero3")]
"""With SmolLM2, of 135 million weights: these runs alone, of five steps each, for they take one to two minutes."""

Figures = dict[str, list[float]]


def flags(stage: str, mode: str, model: Path, data: Path, teacher: Path, output: Path) -> list[str]:
    """The command line of a run."""
    processes, more = MODES[mode]
    return [
        *("--model_name_or_path", str(model), "--train_file_dir", str(data / DATA[stage]), "--output_dir", str(output)),
        *("--per_device_train_batch_size", str(4 // processes), "--logging_steps", "1", "--save_strategy", "no"),
        *("--lr_scheduler_type", "cosine", "--warmup_steps", "2", "--weight_decay", "0.1", "--report_to", "none"),
        *("--gradient_checkpointing", "False", *OWN.get(stage, ()), *more),
        *(("--teacher_model_name_or_path", str(teacher)) if stage == "distill" else ()),
    ]


def read(folder: Path) -> Figures:
    """The figures of each step."""
    steps = [line for line in read_progress(folder) if "loss" in line]
    return {name: [step[name] for step in steps] for name in FIGURES}


def differing(found: Figures, wanted: Figures) -> list[str]:
    """Steps and figures that are further apart than allowed, in words."""
    said = []
    for name, tolerance in FIGURES.items():
        assert len(found[name]) == len(wanted[name]) > 0, name
        for step, (one, other) in enumerate(zip(found[name], wanted[name], strict=True), start=1):
            if not abs(one - other) <= tolerance * max(abs(other), SMALLEST if tolerance == TOLERANCE else 0.0):
                said.append(f"{name} of step {step} is {one}, was {other}")
    return said


def keep(file: Path, mode: str, found: Figures) -> None:
    """Write a run into its file, beside those of other modes."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    kept[mode] = found
    lines = [f'"{mode}": {{\n' + ",\n".join(f' "{name}": {json.dumps(kept[mode][name])}' for name in FIGURES) + "\n}"
             for mode in MODES if mode in kept]  # fmt: skip
    file.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def check(run: Callable, stage: str, mode: str, words: list[str], output: Path, file: Path) -> None:
    """Run it, and compare it with its file, or write that."""
    processes = MODES[mode][0]
    launcher = f"deepspeed --num_gpus {processes}" if processes > 1 else "python"
    run(f"run_{stage}.py", *words, launcher=launcher, warm=True).check()
    found = read(output)
    if WRITE:
        keep(file, mode, found)
        return
    said = differing(found, json.loads(file.read_text(encoding="utf-8"))[mode])
    assert not said, "\n".join([*said[:10], "where this is meant: make golden"])


@pytest.mark.parametrize(("stage", "mode"), cells(EVERY, QUICK))
def test_a_tiny_model(
    run: Callable, tiny_model: Path, tiny_teacher: Path, tiny_data: Path, tmp_path: Path, stage: str, mode: str
) -> None:
    words = flags(stage, mode, tiny_model, tiny_data, tiny_teacher, tmp_path)
    words += ["--max_steps", str(STEPS), "--learning_rate", "1e-3"]
    check(run, stage, mode, words, tmp_path, FOLDER / f"tiny-{stage}.json")


@pytest.fixture(scope="module")
def smollm2(workspace: Path) -> Path:
    """As the demo prepares it."""
    sys.path.insert(0, str(ROOT / "examples"))
    from base_model import prepare_base

    kept = ROOT / "outputs" / "base" / "SmolLM2-135M-Instruct"
    folder = kept if (kept / "SOURCE").is_file() else workspace / "SmolLM2-135M-Instruct"
    prepare_base(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "mode"), LARGE)
def test_smollm2(run: Callable, smollm2: Path, tiny_data: Path, tmp_path: Path, stage: str, mode: str) -> None:
    words = flags(stage, mode, smollm2, tiny_data, smollm2, tmp_path)
    words += ["--max_steps", str(LARGE_STEPS), "--learning_rate", "1e-5"]
    if stage == "distill":  # of its own teacher a student learns nothing
        words += ["--hard_label_share", "0.5"]
    check(run, stage, mode, words, tmp_path, FOLDER / f"smollm2-{stage}.json")


def test_a_difference_is_seen() -> None:
    """Within the tolerance, just outside, and another batch."""
    good: Figures = {"loss": [2.0], "grad_norm": [1.0], "learning_rate": [1e-3], "batch": [12345678901.0]}
    assert differing(good, good) == []
    near: dict[str, Any] = {"loss": [2.0019], "grad_norm": [0.9991]}
    assert differing(good | near, good) == []
    apart = {"loss": 2.0021, "grad_norm": 0.9989, "learning_rate": 1.00001e-3, "batch": 12345678902.0}
    for name, value in apart.items():
        assert len(differing(good | {name: [value]}, good)) == 1, name
    assert len(differing(good | {"loss": [float("nan")]}, good)) == 1
