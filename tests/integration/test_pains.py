"""What docs/pains.md promises and only a real run can show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.conftest import logged

GENERATION = ("--num_generations", "2", "--max_completion_length", "8", "--logging_steps", "1")


def test_a_loss_that_is_no_number_ends_all_ranks(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    finished = run(
        "run_sft.py",
        *("--deepspeed", "zero2", "--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path)),
        *("--train_file_dir", str(tiny_data / "sft"), "--learning_rate", "1e25", "--lr_scheduler_type", "constant"),
        *("--per_device_train_batch_size", "2", "--max_steps", "6", "--save_steps", "1", "--max_grad_norm", "0"),
        launcher="deepspeed --num_gpus 2",
        warm=True,
    )
    assert finished.code == 2, finished.output[-3000:]
    assert "training has broken down" in finished.output and "Traceback" not in finished.output, finished.output[-3000:]
    assert "learning rate 1e+25" in finished.output and "lower --learning_rate" in finished.output
    assert json.loads((tmp_path / "hftune.json").read_text())["status"] == "running"
    for checkpoint in tmp_path.glob("checkpoint-*"):
        assert all(tensor.isfinite().all() for tensor in load_file(checkpoint / "model.safetensors").values())


def test_rl_begins_with_the_sft_adapter(stage_run: Callable) -> None:
    """Policy and reference are both base + adapter at the first step, so they are not apart; the base alone is."""
    sft = stage_run("sft", "lora", "single").folder
    function = "tests/integration/reward_functions.py:count_digits"
    flags = (*GENERATION, "--reward_funcs", function, "--beta", "0.1", "--peft_path", str(sft))
    result = stage_run("rl", "lora", "single", flags)
    assert logged(result.folder, "kl")[0] == pytest.approx(0.0, abs=1e-6)
    assert str(sft) in [parent["folder"] for parent in result.manifest["parents"]]
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (sft, result.folder))
    assert before.keys() == after.keys()
    # Two steps from the SFT adapter: a fresh one would have B at 0 + two steps.
    apart = max(float((before[name] - after[name]).abs().max()) for name in before)
    assert apart < 0.05 < max(float(before[name].abs().max()) for name in before if "lora_B" in name)
