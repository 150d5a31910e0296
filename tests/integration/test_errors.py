"""Bad input that is refused beside what `mistakes.py` lists: exit code 2, one message, nothing written or changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def sft(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> Callable:
    """run_sft.py with good arguments unless replaced; must fail with code 2 and write nothing."""

    def attempt(*flags: str, script: str = "run_sft.py", warm: bool = True, **replaced: str) -> str:
        given = {
            "model_name_or_path": str(tiny_model),
            "train_file_dir": str(tiny_data / "sft"),
            "output_dir": str(tmp_path / "out"),
        } | replaced
        finished = run(
            script, *(part for name, value in given.items() for part in (f"--{name}", value)), *flags, warm=warm
        )
        assert finished.code == 2, finished.output[-3000:]
        assert "Traceback" not in finished.output
        assert finished.output.count("error:") == 1
        assert "output_dir" in replaced or not (tmp_path / "out").exists()
        return finished.output

    return attempt


def test_merging_into_another_base(run: Callable, stage_run: Callable, tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    make_other_weights(other)
    adapter = str(stage_run("sft", "lora", "single").folder)
    flags = ["--base_model_name_or_path", str(other), "--peft_model_path", adapter, "--output_dir", str(tmp_path / "m")]
    finished = run("merge_peft_adapter.py", *flags, warm=True)
    assert finished.code == 2 and "trained on other weights" in finished.output
    assert not (tmp_path / "m").exists()


def test_finished_output_folder(sft: Callable, stage_run: Callable) -> None:
    done = stage_run("sft", "lora", "single").folder
    before = (done / "hftune.json").read_bytes()
    message = sft(output_dir=str(done))
    assert "already holds a finished run" in message and "--overwrite_output_dir" in message
    assert (done / "hftune.json").read_bytes() == before


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


def test_broken_deepspeed_config(sft: Callable, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "elasticity": {}}))
    assert 'DeepSpeed has removed the config key "elasticity"' in sft("--deepspeed", str(tmp_path / "ds.json"))


def make_other_weights(folder: Path) -> None:
    """Same shapes, other numbers: only the fingerprint can tell."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = {name: torch.randn_like(tensor) for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
