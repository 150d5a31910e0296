"""Bad input that is refused beside what `mistakes.py` lists: exit code 2, one message, nothing written or changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def test_merging_into_another_base(run: Callable, stage_run: Callable, tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    make_other_weights(other)
    adapter = str(stage_run("sft", "lora", "single").folder)
    flags = ["--base_model_name_or_path", str(other), "--peft_model_path", adapter, "--output_dir", str(tmp_path / "m")]
    finished = run("merge_peft_adapter.py", *flags, warm=True)
    assert finished.code == 2 and "trained on other weights" in finished.output
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_all_problems_at_once_by_one_of_two_processes(run: Callable, tmp_path: Path, warm: bool) -> None:
    """Refusals under a launcher: `tests/faults/test_interrupts.py`; DeepSpeed's and exit codes: `test_pains.py`."""
    finished = run(
        "run_sft.py",
        *("--model_name_or_path", "./nowhere", "--train_file_dir", "./nothing", "--load_in_8bit"),
        *("--deepspeed", "ds_configs/zero3.json", "--output_dir", str(tmp_path / "out")),
        launcher="deepspeed --num_gpus 2",
        warm=warm,
    )
    assert finished.code == 2
    for part in ("./nowhere", "./nothing", "cannot be trained in full", "8-bit weights under ZeRO-3"):
        assert part in finished.output
    assert finished.output.count("error:") == 1
    assert not (tmp_path / "out").exists()


def make_other_weights(folder: Path) -> None:
    """Same shapes, other numbers: only the fingerprint can tell."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = {name: torch.randn_like(tensor) for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
