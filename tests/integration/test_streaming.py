"""A stream under real launchers: two processes tell each other what they trained, and one goes on with the rest."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

TOKENS = 240


@pytest.mark.parametrize(
    "launcher", [pytest.param("torchrun --nproc_per_node 2", marks=pytest.mark.slow), "deepspeed --num_gpus 2"]
)
def test_stopped_on_two_processes_and_gone_on_with(
    run: Callable, tiny_model: Path, tmp_path: Path, launcher: str
) -> None:
    """60 records in windows of 4. Two processes train 5 steps of 2 x 3; then the 30 that are left are trained in steps
    of 3 by one process, or, as ZeRO's checkpoints want the same world, in 5 steps of 2 x 3 again."""
    zero = launcher.startswith("deepspeed")
    config = ["--deepspeed", "ds_configs/zero3.json"] if zero else []
    os.environ["RECORD_TO"] = str(tmp_path / "record")
    common = [*config, "--model_name_or_path", str(tiny_model), "--per_device_train_batch_size", "3"]
    common += ["--gradient_checkpointing", "False", "--save_strategy", "steps"]
    first = ["--output_dir", str(tmp_path / "first"), "--max_steps", "5", "--save_steps", "5"]
    script = "tests/integration/streaming_pt.py"
    run(script, *common, *first, "--dataloader_num_workers", "2", launcher=launcher, warm=True).check()
    checkpoint = tmp_path / "first" / "checkpoint-5"
    state = json.loads((checkpoint / "loader_state.json").read_text())
    assert state["totals"] == {"dropped": 0, "tokens": 30 * 3}

    steps = "10" if zero else "15"
    second = [
        "--output_dir",
        str(tmp_path / "second"),
        "--max_steps",
        steps,
        "--resume_from_checkpoint",
        str(checkpoint),
    ]
    finished = run(script, *common, *second, launcher=launcher if zero else "python", warm=True).check()
    recorded = Counter(int(token) for file in tmp_path.glob("record.*") for token in file.read_text().split())
    assert sum(recorded.values()) == TOKENS
    assert f"trained tokens: {60 * 3}" in finished.output
    assert set(recorded.values()) == {1}
