"""Commands that leave much open, run as users run them: the recipe they begin with, and MedicalGPT's rules at work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "hftune.json").read_text())


@pytest.fixture
def quick(run: Callable, tiny_model: Path, tmp_path: Path) -> Callable[..., tuple[str, dict[str, Any]]]:
    """`quick("dpo", "--flag", ...)`: what the script said, and its manifest."""

    def start(stage: str, *flags: str) -> tuple[str, dict[str, Any]]:
        where = ("--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path / "out"))
        small = ("--per_device_train_batch_size", "2", "--max_steps", "2", "--report_to", "none")
        finished = run(f"run_{stage}.py", *where, *small, *flags, warm=True).check()
        return finished.output, manifest_of(tmp_path / "out")

    return start


def test_medicalgpts_dpo(quick: Callable, tmp_path: Path) -> None:
    """Pairs with too many characters are left out, a share is held out, and it trains at its rate."""
    (tmp_path / "data").mkdir()
    records = [
        {"conversations": [{"from": "human", "value": "a" * n}], "chosen": "b" * n, "rejected": "c"}
        for n in range(1, 21)
    ]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    written = len("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
    budget, kept = written + 2 * 12, 12
    said, manifest = quick(
        "dpo", "--train_file_dir", str(tmp_path / "data"), "--defaults", "medicalgpt", "--do_train", "--do_eval",
        "--max_source_length", str(budget - 20), "--max_target_length", "20",
    )  # fmt: skip
    data, training = manifest["data"], manifest["arguments"]["training"]
    assert data["train"]["used"] + data["eval"]["used"] == kept
    assert data["eval"]["used"] == 1
    assert data["train"]["dropped"] == {"more characters than its lengths": len(records) - kept}
    assert (training["learning_rate"], training["warmup_steps"], training["max_steps"]) == (5e-4, 100, 2)
    assert manifest["kind"] == "adapter"
    assert "--defaults medicalgpt, but for trust_remote_code True" in said
    assert "fp16 True (a CPU" in said


def test_medicalgpts_grpo(quick: Callable, tmp_path: Path) -> None:
    """Its rewards, and the system message that asks for what they look at, in what is sampled."""
    (tmp_path / "data").mkdir()
    records = [{"question": f"What is {n} plus 1?", "answer": f"It is so.\n#### {n + 1}"} for n in range(8)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    sizes = ("--num_generations", "2", "--max_completion_length", "4", "--logging_steps", "1")
    said, manifest = quick("rl", "--train_file_dir", str(tmp_path / "data"), "--defaults", "medicalgpt", *sizes)
    history = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    assert {"rewards/accuracy/mean", "rewards/format/mean"} <= history[0].keys()
    assert "reward_funcs accuracy+format*" in said
    samples = (tmp_path / "out" / "completions.jsonl").read_text()
    assert "<answer> answer here </answer>" in samples
    assert manifest["data"]["train"]["tokens"] > 8 * 100  # the message is longer than the questions
