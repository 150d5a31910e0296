"""Distillation through the real script: the same in any world and under any ZeRO stage, and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.conftest import logged

GREEDY = ("--distill_mode", "on_policy", "--top_k", "1", "--max_completion_length", "8")


def test_answers_drawn_under_zero3_teach_as_those_of_one_process(stage_run: Callable, tiny_teacher: Path) -> None:
    """Targets of a teacher under each stage: `tests/matrix`."""
    flags = ("--teacher_model_name_or_path", str(tiny_teacher), *GREEDY, "--max_steps", "4")
    alone, zero3 = (stage_run("distill", "lora", mode, flags).losses for mode in ("single", "zero3"))
    assert len(alone) == 4 and zero3 == pytest.approx(alone, abs=1e-4)


def test_a_quantised_teacher(stage_run: Callable, tiny_teacher: Path) -> None:
    teacher = ("--teacher_model_name_or_path", str(tiny_teacher), "--teacher_load_in_4bit", "True")
    result = stage_run("distill", "lora", "single", (*teacher, *GREEDY))
    assert result.losses[-1] < result.losses[0]
    (known,) = result.manifest["teachers"]
    assert known["name"] == str(tiny_teacher) and known["fingerprint"]
    lines = [json.loads(line) for line in (result.folder / "completions.jsonl").read_text().splitlines()]
    assert lines and all(line["completion"] and "<|im_start|>assistant" in line["prompt"] for line in lines)


def test_a_resumed_run_is_the_uninterrupted_one(
    run: Callable, tiny_model: Path, tiny_teacher: Path, tiny_data: Path, tmp_path: Path
) -> None:
    sampled = ("--distill_mode", "mixed", "--max_completion_length", "8", "--temperature", "0.9")

    def start(name: str, *more: str) -> list[float]:
        folder = tmp_path / name
        run(
            "run_distill.py",
            *("--model_name_or_path", str(tiny_model), "--teacher_model_name_or_path", str(tiny_teacher)),
            *("--train_file_dir", str(tiny_data / "sft"), "--output_dir", str(folder), "--logging_steps", "1"),
            *("--max_steps", "4", "--save_strategy", "steps", "--save_steps", "2"),
            *("--gradient_accumulation_steps", "2"),
            *("--per_device_train_batch_size", "2", "--learning_rate", "1e-3"),
            *sampled,
            *more,
            warm=True,
        ).check()
        return logged(folder)

    whole = start("whole")
    assert len(whole) == 4
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert start("resumed", "--resume_from_checkpoint", str(checkpoint)) == whole
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
