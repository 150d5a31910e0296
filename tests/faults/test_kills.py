"""SIGKILL at random moments: a run always resumes from a whole checkpoint, and ends where an unharmed one does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import logged

# (kills, processes, DeepSpeed config, further flags): 50 kills in all in the slow ones.
CASES = [
    (2, 1, None, ["--async_save", "True"]),
    pytest.param(25, 1, None, [], marks=pytest.mark.slow),
    pytest.param(15, 2, "zero2", [], marks=pytest.mark.slow),
    pytest.param(10, 2, "zero3", ["--use_peft", "--lora_r", "4"], marks=pytest.mark.slow),
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills, processes, config, more", CASES)
def test_killed_runs_go_on(
    run: Callable,
    tiny_model: Path,
    tiny_data: Path,
    tmp_path: Path,
    kills: int,
    processes: int,
    config: str | None,
    more: list[str],
) -> None:
    steps = 10 + 8 * kills  # enough for all kills, each of which comes within a few saves
    flags = ["--model_name_or_path", str(tiny_model), "--train_file_dir", str(tiny_data / "sft")]
    flags += ["--max_steps", str(steps), "--save_steps", "2", "--save_total_limit", "3", "--logging_steps", "1"]
    flags += ["--per_device_train_batch_size", "2", "--resume_from_checkpoint", "auto", "--report_to", "none"]
    flags += ["--gradient_checkpointing", "False", "--learning_rate", "1e-3", "--use_cpu", "True", *more]
    flags += ["--deepspeed", f"ds_configs/{config}.json"] if config else []

    asked = ["tests/faults/kill_often.py", str(kills), "7", str(processes), str(tmp_path), "run_sft.py"]
    finished = run(*asked, *flags, timeout=3000, warm=True).check()
    lines = [line for line in finished.output.splitlines() if line.startswith("RUN ")]
    reports = [json.loads(line.removeprefix("RUN ")) for line in lines]
    assert reports[-1]["code"] == 0, (tmp_path / "log").read_text()[-3000:]
    doing = Counter(report["doing"] for report in reports if report["killed"])
    print(f"KILLS {config or 'plain'} x {processes}: {dict(doing)}")
    assert sum(doing.values()) == kills, reports
    found = [report["step"] for report in reports]
    assert found == sorted(found) and found[-1] == steps
    assert all(report["not_whole"] == [] for report in reports), "something half written was called a checkpoint"
    unharmed, harmed = logged(tmp_path / "unharmed"), logged(tmp_path / "harmed")
    assert len(harmed) == steps and harmed == unharmed, "same world: bit for bit"
    hidden = {file.name for file in (tmp_path / "harmed").glob(".*")}
    assert hidden <= {".hftune.written"}, "leftovers of killed runs"
