"""The demo on the real model, whole: what it promises holds. About a quarter of an hour on 2 cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hftune.tools.reporting.tables import labels, reward_section

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_demo(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "examples/demo.py", "--output_dir", str(folder)]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]

    found = json.loads((folder / "answers" / "answers.json").read_text())
    answers = dict(zip(labels([*found["answers"]]), found["answers"].values(), strict=True))
    base, *_ = answers
    assert [*answers] == [base, "pt", "sft", "rl", "dpo"] and "Fina" not in answers[base][0]
    for model in ("sft", "rl", "dpo"):
        assert answers[model][0].startswith("I am Fina, a small assistant trained with hftune"), model
    assert manifest(folder / "rm")["metrics"]["eval_accuracy"] >= 0.9
    rewards = reward_section(found)
    assert rewards is not None
    means = dict(rewards.rows)  # type: ignore[arg-type]
    assert means["rl"] > means["sft"]
    for stage in ("pt", "sft", "rl", "dpo"):
        assert manifest(folder / f"{stage}-merged")["verified"]["same_greedy"] == 1.0, stage
    assert manifest(folder / "rm-merged")["verified"]["largest"] < 1e-3
    assert "I am Fina" in (folder / "report.html").read_text() and "I am Fina" in (folder / "report.md").read_text()

    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert again.returncode == 0 and "nothing had changed" in again.stdout, again.stdout[-4000:]


def manifest(folder: Path) -> dict:
    return json.loads((folder / "hftune.json").read_text())
