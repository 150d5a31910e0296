"""A tiny student learns from a tiny teacher that has another tokenizer and another chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.conftest import tiny_config
from tests.unit.data.templates.turn_token_families import family_tokenizer


@pytest.fixture(scope="module")
def other_teacher(workspace: Path) -> Path:
    """SentencePiece's kind of tokens, Mistral's template, and a head that is sure of itself."""
    tokenizer = family_tokenizer("mistral", "pieces")
    torch.manual_seed(1)
    model = LlamaForCausalLM(tiny_config(tokenizer, tie_word_embeddings=False))
    model.lm_head.weight.data.normal_(std=0.5)
    folder = workspace / "other_teacher"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _run(
    run: Callable, student: Path, teacher: Path, data: Path, folder: Path, *more: str, launcher: str = "python"
) -> list[dict]:
    flags = ("--model_name_or_path", str(student), "--teacher_model_name_or_path", str(teacher), "--use_cpu", "True")
    data_flags = ("--train_file_dir", str(data / "sft"), "--max_length", "64", "--output_dir", str(folder))
    steps = ("--learning_rate", "0.01", "--logging_steps", "1", "--save_strategy", "no", "--beta", "0")
    done = run("run_distill.py", *flags, *data_flags, *steps, *more, launcher=launcher, warm=True).check()
    assert "another tokenizer than the student" in done.output
    state = json.loads((folder / "trainer_state.json").read_text())
    return [line for line in state["log_history"] if "loss" in line]


def test_the_loss_falls(run: Callable, tiny_model: Path, tiny_data: Path, other_teacher: Path, tmp_path: Path) -> None:
    offline = ("--distill_mode", "offline", "--max_steps", "12", "--per_device_train_batch_size", "4")
    losses = [line["loss"] for line in _run(run, tiny_model, other_teacher, tiny_data, tmp_path / "a", *offline)]
    assert losses[-1] < 0.8 * losses[0]
    # Padded rows are the same records: the first step, before anything is learnt, has the same loss.
    once = (*offline, "--max_steps", "1", "--padding_free", "False")
    padded = _run(run, tiny_model, other_teacher, tiny_data, tmp_path / "b", *once)
    assert padded[0]["loss"] == pytest.approx(losses[0], rel=1e-4)


def test_own_answers(run: Callable, tiny_model: Path, tiny_data: Path, other_teacher: Path, tmp_path: Path) -> None:
    drawn = ("--distill_mode", "on_policy", "--max_steps", "2", "--max_completion_length", "8")
    losses = [line["loss"] for line in _run(run, tiny_model, other_teacher, tiny_data, tmp_path / "c", *drawn)]
    assert len(losses) == 2 and all(loss > 0 for loss in losses)


@pytest.mark.slow
@pytest.mark.parametrize("config", ["zero2", "zero3"])
def test_two_processes_train_as_one(
    run: Callable, tiny_model: Path, tiny_data: Path, other_teacher: Path, tmp_path: Path, config: str
) -> None:
    offline = ("--distill_mode", "offline", "--max_steps", "4", "--lr_scheduler_type", "constant")
    alone, both = (
        [line["loss"] for line in _run(run, tiny_model, other_teacher, tiny_data, tmp_path / name, *given, **more)]
        for name, given, more in (
            ("one", (*offline, "--per_device_train_batch_size", "4"), {}),
            (
                "two",
                (*offline, "--per_device_train_batch_size", "2", "--deepspeed", f"ds_configs/{config}.json"),
                {"launcher": "deepspeed --num_gpus 2"},
            ),
        )
    )
    assert len(both) == 4 and both == pytest.approx(alone, abs=1e-4)
