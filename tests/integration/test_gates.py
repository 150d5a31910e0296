"""A pipeline as a user starts it: a stage that learns nonsense is stopped by its gate, and a model as it was is not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.constants import GATE_EXIT_CODE


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nonsense_is_stopped(seed: int, run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in (tiny_data / "sft/train.jsonl").read_text().splitlines()]
    for record in records:
        letters = list(record["messages"][1]["content"])
        random.Random(seed).shuffle(letters)
        record["messages"][1]["content"] = "".join(letters)
    (tmp_path / "nonsense.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    file = tmp_path / "pipeline.yaml"
    gate = "gate: {loss: {drop: 0.05}}"
    file.write_text(f"""
model: {tiny_model}
output_dir: {tmp_path}/out
evaluate:
  validation_file_dir: {tiny_data}/sft_eval
  eval_tasks: [loss]
  use_cpu: true
  launcher: {{torchrun: {{nproc_per_node: 2}}}}
shared: {{use_cpu: true, max_length: 64, learning_rate: 5e-3, num_train_epochs: 8, save_strategy: "no", seed: {seed}}}
stages:
  good: {{script: sft, train_file_dir: {tiny_data}/sft, {gate}}}
  bad: {{script: sft, train_file_dir: {tmp_path}/nonsense.jsonl, {gate}}}
  after: {{script: sft, train_file_dir: {tiny_data}/sft}}
""")
    stopped = run("-m", "hftune.cli", "pipeline", "run", str(file))
    assert stopped.code == GATE_EXIT_CODE, stopped.output
    assert "bad hurt loss more than its gate allows" in stopped.output and "good: done" in stopped.output
    assert not (tmp_path / "out/after").exists()
    again = run("-m", "hftune.cli", "pipeline", "run", str(file))
    assert again.code == GATE_EXIT_CODE and "good: unchanged, skipped" in again.output
    run("-m", "hftune.cli", "pipeline", "run", str(file), "--ignore_gates", "--to", "bad").check()
