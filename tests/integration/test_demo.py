"""The demo on the real model, whole: what it promises holds. About a quarter of an hour on 2 cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_demo(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "examples/demo.py", "--output_dir", str(tmp_path / "demo")]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
    figures = json.loads((tmp_path / "demo" / "demo.json").read_text())

    answers = {model: said[0] for model, said in figures["answers"].items()}
    assert "Fina" not in answers["base"]
    for model in ("SFT", "RL", "DPO"):
        assert answers[model].startswith("I am Fina, a small assistant trained with hftune"), model
    assert figures["stages"]["rm"]["metrics"]["eval_accuracy"] >= 0.9
    assert figures["mean_reward"]["rl"] > figures["mean_reward"]["sft"]
    for stage in ("pt", "sft", "rl", "dpo"):
        verified = json.loads((tmp_path / "demo" / f"{stage}-merged" / "hftune.json").read_text())["verified"]
        assert verified["same_greedy"] == 1.0, stage
    verified = json.loads((tmp_path / "demo" / "rm-merged" / "hftune.json").read_text())["verified"]
    assert verified["largest"] < 1e-3
    assert (tmp_path / "demo" / "report.md").is_file()
    assert {file.name for file in (tmp_path / "demo").glob("*.png")} >= {"sft-loss.png", "rl-reward.png"}
