"""Targets computed once by two processes, and a student that learns from them as from the teacher itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.conftest import tiny_config


@pytest.mark.slow
def test_a_student_learns_from_stored_targets_as_from_their_teacher(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(1)
    teacher = LlamaForCausalLM(tiny_config(tokenizer))
    for parameter in teacher.parameters():
        parameter.data.mul_(3)
    teacher.save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    given = ["--model_name_or_path", tiny_model, "--train_file_dir", tiny_data / "sft", "--max_length", 64, "--use_cpu"]
    given += ["--validation_split_percentage", 20, "--temperature", 1.5]
    words, source = [str(word) for word in given], ["--teacher_model_name_or_path", str(tmp_path / "teacher")]
    stored = str(tmp_path / "targets")
    run(
        *("-m", "hftune.cli", "teach", *words, *source, "--top_k", "1000000", "--output_dir", stored),
        launcher="torchrun --nproc_per_node 2",
    ).check()
    words += ["--distill_mode", "offline", "--max_steps", "3", "--logging_steps", "1", "--beta", "0.5", "--packing"]
    words += ["--eval_strategy", "steps", "--eval_steps", "3", "--learning_rate", "1e-3"]
    logs = []
    for name, more in (("online", source), ("stored", ["--teacher_targets", stored])):
        folder = tmp_path / name
        run("run_distill.py", *words, *more, "--output_dir", str(folder), warm=True).check()
        history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        logs.append([entry[key] for entry in history for key in ("loss", "grad_norm", "eval_loss") if key in entry])
    assert len(logs[0]) == 7 and logs[1] == pytest.approx(logs[0], abs=1e-5)
    refused = run("run_distill.py", *words, "--teacher_targets", stored, "--temperature", "2", warm=True)
    assert refused.code == 2 and "of temperature 1.5" in refused.output and "Traceback" not in refused.output
