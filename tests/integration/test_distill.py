"""Distillation through the real script: the same in any world and under any ZeRO stage, and resumed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

GREEDY = ("--distill_mode", "on_policy", "--top_k", "1", "--max_completion_length", "8")
MODES = {"offline": ("--distill_mode", "offline", "--beta", "0.5"), "on_policy": GREEDY}


@pytest.fixture
def distil(stage_run: Callable, tiny_teacher: Path) -> Callable[..., Any]:
    """`distil("lora", "zero2", "offline")`"""

    def started(method: str, mode: str, kind: str, *more: str) -> Any:
        return stage_run(
            "distill", method, mode, ("--teacher_model_name_or_path", str(tiny_teacher), *MODES[kind], *more)
        )

    return started


QUICK = (("lora", "on_policy", "zero3"),)  # tests/matrix has targets of a teacher under each stage
ALL = itertools.product(("full", "lora"), MODES, ("zero2", "zero3"))
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in QUICK]


@pytest.mark.parametrize("method, kind, mode", [*QUICK, *SLOW])
def test_zero_and_one_process_train_alike(distil: Callable, method: str, kind: str, mode: str) -> None:
    alone = distil(method, "single", kind).losses
    assert alone[-1] < alone[0]
    assert distil(method, mode, kind).losses == pytest.approx(alone, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(MODES))
def test_a_quantised_student_trains_alike_under_zero2(distil: Callable, kind: str) -> None:
    alone = distil("qlora4", "single", kind).losses
    assert alone[-1] < alone[0]
    assert distil("qlora4", "zero2", kind).losses == pytest.approx(alone, abs=1e-4)


def test_a_quantised_teacher(stage_run: Callable, tiny_teacher: Path) -> None:
    teacher = ("--teacher_model_name_or_path", str(tiny_teacher), "--teacher_load_in_4bit", "True")
    result = stage_run("distill", "lora", "zero2", (*teacher, *MODES["on_policy"]))
    assert result.losses[-1] < result.losses[0]
    (known,) = result.manifest["teachers"]
    assert known["name"] == str(tiny_teacher) and known["fingerprint"]
    lines = [json.loads(line) for line in (result.folder / "completions.jsonl").read_text().splitlines()]
    assert lines and all(line["completion"] and "<|im_start|>assistant" in line["prompt"] for line in lines)


@pytest.mark.parametrize("kind", list(MODES))
def test_a_resumed_run_is_the_uninterrupted_one(
    run: Callable, tiny_model: Path, tiny_teacher: Path, tiny_data: Path, tmp_path: Path, kind: str
) -> None:
    sampled = ("--distill_mode", "mixed", "--max_completion_length", "8", "--temperature", "0.9")

    def start(name: str, *more: str) -> list[float]:
        folder = tmp_path / name
        run(
            "run_distill.py",
            *("--model_name_or_path", str(tiny_model), "--teacher_model_name_or_path", str(tiny_teacher)),
            *("--train_file_dir", str(tiny_data / "sft"), "--output_dir", str(folder), "--logging_steps", "1"),
            *(
                "--max_steps",
                "4",
                "--save_strategy",
                "steps",
                "--save_steps",
                "2",
                "--gradient_accumulation_steps",
                "2",
            ),
            *("--per_device_train_batch_size", "2", "--learning_rate", "1e-3"),
            *(MODES["offline"] if kind == "offline" else sampled),
            *more,
            warm=True,
        ).check()
        history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        return [entry["loss"] for entry in history if "loss" in entry]

    whole = start("whole")
    assert len(whole) == 4
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert start("resumed", "--resume_from_checkpoint", str(checkpoint)) == whole
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
