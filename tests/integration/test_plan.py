"""`hftune plan` as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_plan_as_a_command(run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    """For GPUs that are not here, under a DeepSpeed config, in a folder that holds a config and nothing else."""
    folder = tmp_path / "config-only"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    flags = ["--model_name_or_path", str(folder), "--train_file_dir", str(tiny_data / "sft"), "--max_length", "256"]
    more = ["--deepspeed", "zero2", "--gpus", "8xH200", "--json"]
    finished = run("-m", "hftune.cli", "plan", "run_sft.py", *flags, *more).check()
    found = json.loads(finished.output.strip().splitlines()[-1])
    asked = found["choices"][0]
    assert (found["devices"], asked["verdict"], asked["traced"]) == (8, "fits", True)
    assert found["steps"] == 3  # 20 records in one step of 8 x 8, three epochs
    assert {"--deepspeed zero3", "--qlora", "--activation_checkpointing none"} <= {
        one["flags"] for one in found["choices"]
    }
