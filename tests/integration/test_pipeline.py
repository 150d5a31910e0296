"""`hftune pipeline run` as a user starts it: two processes under deepspeed, stopped, hurt, finished, and left alone."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hftune.checkpoints.manifest import is_complete
from hftune.checkpoints.resume import newest_whole
from hftune.tools.pipeline.processes import descendants

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> Path:
    """SFT with an adapter on two processes, long enough to be stopped."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(f"""
model: {tiny_model}
output_dir: {tmp_path}/out
launcher: {{deepspeed: {{num_gpus: 2}}}}
stages:
  sft:
    deepspeed: ds_configs/zero2.json
    use_peft: true
    lora_rank: 4
    train_file_dir: {tiny_data}/sft
    per_device_train_batch_size: 2
    gradient_checkpointing: false
    max_steps: 120
    save_steps: 10
    save_total_limit: 2
    logging_steps: 1
""")
    return path


def start(file: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hftune.cli", "pipeline", "run", str(file), *flags]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def cpu_seconds() -> float:
    """Of all processes that have been started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.1)


def ranks(pid: int) -> list[psutil.Process]:
    """Processes that run the script itself."""
    found = []
    for process in descendants(pid):
        words = process.cmdline() if process.is_running() else []
        if len(words) > 2 and Path(words[2]).name == "run_sft.py":
            found.append(process)
    return found


@pytest.mark.slow
def test_stopped_hurt_finished_and_left_alone(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "sft"
    progress = folder / "progress.jsonl"

    # Ctrl-C: one rank is told, all save, and the pipeline ends as a preempted run does.
    running = start(file)
    wait_for(lambda: progress.is_file() and progress.read_bytes().count(b"\n") > 3)
    below = descendants(running.pid)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 75 and "a checkpoint is saved" in output, output
    saved = newest_whole(folder).folder
    assert saved is not None and not is_complete(folder)
    assert not [process for process in below if process.is_running()]

    # A rank is killed from outside: said as such, nothing is left running, and the checkpoint is still good.
    running = start(file)
    lines = progress.read_bytes().count(b"\n")
    wait_for(lambda: progress.read_bytes().count(b"\n") > lines + 3)
    below = descendants(running.pid)
    ranks(running.pid)[1].kill()
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 2 and "killed from outside" in output and "run_sft.py --model_name_or_path" in output
    assert not [process for process in below if process.is_running()]
    assert f"resuming from {saved}" in (tmp_path / "out" / "logs" / "sft.log").read_text()

    # To the end, and once more.
    output, _ = (finished := start(file)).communicate(timeout=300)
    assert finished.returncode == 0 and is_complete(tmp_path / "out" / "sft-merged"), output
    spent, again = cpu_seconds(), start(file)
    seen = []
    while again.poll() is None:
        seen += (
            [process.pid for process in psutil.Process(again.pid).children()] if psutil.pid_exists(again.pid) else []
        )
    output = again.communicate()[0]
    assert again.returncode == 0 and "nothing had changed" in output and seen == []
    assert cpu_seconds() - spent < 5, "it loads no library; on a busy machine the clock would say other things"


@pytest.mark.slow
def test_a_dry_run(file: Path, tiny_data: Path, tmp_path: Path) -> None:
    # Two tokens of an answer are cut, and score nothing: the stage after this one has data all the same.
    file.write_text(
        file.read_text()
        + f"""
  drawn: {{script: sample, launcher: python, train_file_dir: {tiny_data}/sft, reward_funcs: format, keep: pairs}}
  dpo: {{launcher: python, train_file_dir: "${{stages.drawn.data}}", use_peft: true, max_length: 64}}
"""
    )
    output, _ = (running := start(file, "--dry_run")).communicate(timeout=400)
    assert running.returncode == 0 and "found nothing wrong" in output, output
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.dry_run").exists()
