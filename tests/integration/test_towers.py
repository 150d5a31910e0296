"""A model that sees, trained on text: whole afterwards, and it sees what it saw."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.towers import image_logits, make_whole, make_with_further_head

TWO = "deepspeed --num_gpus 2"
SMALL = ("--max_length", "128", "--use_cpu", "True", "--logging_steps", "1", "--learning_rate", "1e-2")


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("model*.safetensors") for name, tensor in load_file(file).items()}


def check_whole(base: Path, folder: Path, *, seen: str) -> dict[str, torch.Tensor]:
    """Names, shapes, dtypes, config and bytes of what was not trained are the base's; returns the tensors."""
    before, after = tensors_of(base), tensors_of(folder)
    shapes = [{name: (one.dtype, one.shape) for name, one in tensors.items()} for tensors in (before, after)]
    assert shapes[0] == shapes[1]
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any(seen in name for name in changed)
    assert json.loads((folder / "config.json").read_text()) == json.loads((base / "config.json").read_text())
    for file in base.glob("*processor_config.json"):
        assert (folder / file.name).read_bytes() == file.read_bytes()
    return after


@pytest.fixture(scope="module")
def gemma(workspace: Path) -> Path:
    return make_whole("gemma3", workspace / "whole-gemma3")


def sft(run: Callable[..., Any], base: Path, data: Path, output: Path, *flags: str, **how: Any) -> None:
    asked = ("--model_name_or_path", str(base), "--train_file_dir", str(data / "sft"), "--output_dir", str(output))
    run("run_sft.py", *asked, *SMALL, *flags, warm=True, **how).check()


def test_full_training_then_an_adapter_on_it(
    run: Callable[..., Any], gemma: Path, tiny_data: Path, tmp_path: Path
) -> None:
    full, adapter, merged = (tmp_path / name for name in ("full", "adapter", "merged"))
    sft(run, gemma, tiny_data, full, "--max_steps", "1")
    check_whole(gemma, full, seen="vision_tower")
    assert not torch.equal(image_logits(full), image_logits(gemma))
    sft(run, full, tiny_data, adapter, "--max_steps", "1", "--use_peft", "True", "--target_modules", "all")
    run("merge_peft_adapter.py", "--peft_model_path", str(adapter), "--output_dir", str(merged), warm=True).check()
    check_whole(full, merged, seen="vision_tower")


OTHERS = ["qwen3_vl", "qwen3_5", "gemma4", "mistral3", "further head"]


@pytest.mark.parametrize("name", ["gemma3", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_zero3_resumed_is_zero3_at_one_go(name: str, run: Callable[..., Any], tiny_data: Path, tmp_path: Path) -> None:
    further = name == "further head"
    base = make_with_further_head(tmp_path / "base") if further else make_whole(name, tmp_path / "base")
    seen = ".layers.3." if further else "visual." if name.startswith("qwen") else "vision_tower"
    at_once, resumed = tmp_path / "at_once", tmp_path / "resumed"
    zero3 = ("--deepspeed", "zero3", "--max_steps", "2", "--save_steps", "1", "--save_strategy", "steps")
    sft(run, base, tiny_data, at_once, *zero3, launcher=TWO)
    (resumed / "checkpoint-1").parent.mkdir()
    (at_once / "checkpoint-1").rename(resumed / "checkpoint-1")
    sft(run, base, tiny_data, resumed, *zero3, "--resume_from_checkpoint", "auto", launcher=TWO)
    first, second = (check_whole(base, folder, seen=seen) for folder in (at_once, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)
