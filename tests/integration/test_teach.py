"""Targets computed once by two processes, and a student that learns from them as from the teacher itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
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
    given_words = list(words)
    words += ["--distill_mode", "offline", "--max_steps", "3", "--logging_steps", "1", "--beta", "0.5", "--packing"]
    words += ["--eval_strategy", "steps", "--eval_steps", "3", "--learning_rate", "1e-3"]
    logs = []
    for name, more in (("online", source), ("stored", ["--teacher_targets", stored])):
        folder = tmp_path / name
        run("run_distill.py", *words, *more, "--output_dir", str(folder), warm=True).check()
        history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        logs.append([entry[key] for entry in history for key in ("loss", "grad_norm", "eval_loss") if key in entry])
    assert len(logs[0]) == 7 and logs[1] == pytest.approx(logs[0], abs=1e-5)
    # A step of plain descent at rate 1 moves each weight by its gradient.
    step = ["--distill_mode", "offline", "--max_steps", "1", "--beta", "0.5", "--optim", "sgd", "--learning_rate", "1"]
    step += ["--lr_scheduler_type", "constant", "--max_grad_norm", "0"]
    moved = []
    for name, more in (("one", source), ("other", ["--teacher_targets", stored])):
        run("run_distill.py", *given_words, *step, *more, "--output_dir", str(tmp_path / name), warm=True).check()
        moved.append(load_file(tmp_path / name / "model.safetensors"))
    before = load_file(tiny_model / "model.safetensors")
    largest = max(float((moved[0][name] - before[name]).abs().max()) for name in before)
    assert largest > 1e-3 and set(moved[0]) == set(moved[1])
    for name, weight in moved[0].items():
        torch.testing.assert_close(moved[1][name], weight, rtol=0, atol=1e-6)
    refused = run("run_distill.py", *words, "--teacher_targets", stored, "--temperature", "2", warm=True)
    assert refused.code == 2 and "of temperature 1.5" in refused.output and "Traceback" not in refused.output
