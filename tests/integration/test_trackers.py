"""What arrives at a tracker, offline, from two processes: every figure in one run, and the arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SECRETS = {
    "WANDB_API_KEY": "wandb-key-of-nobody-0123456789abcdef0123",
    "MLFLOW_TRACKING_PASSWORD": "mlflow-password-of-nobody",
    "HF_TOKEN": "hf_tokenOfNobodyAtAll0123456789",
}


def arrived(folder: Path) -> tuple[dict[int, float], list[float], dict[str, Any]]:
    """Losses by step, evaluations and arguments that TensorBoard holds of the one run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (logs,) = {file.parent for file in (folder / "out" / "runs").rglob("events.*")}
    events = EventAccumulator(str(logs)).Reload()
    text = events.Tensors("args/text_summary")[0].tensor_proto.string_val[0].decode()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    return losses, [event.value for event in events.Scalars("eval/loss")], json.loads(text)


def test_what_arrives(
    run: Callable, tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in SECRETS.items():
        monkeypatch.setenv(variable, value)
    run(
        "run_sft.py",
        *("--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path / "out"), "--run_name", "my-run"),
        *("--train_file_dir", str(tiny_data / "sft"), "--validation_file_dir", str(tiny_data / "sft_eval")),
        *("--eval_strategy", "no", "--save_strategy", "no", "--max_steps", "3", "--logging_steps", "1"),
        *("--use_peft", "True", "--lora_rank", "4", "--gradient_checkpointing", "False", "--report_to", "tensorboard"),
        launcher="torchrun --nproc_per_node 2",
        warm=True,
    ).check()

    found, evaluations, arguments = arrived(tmp_path)
    logged = [json.loads(line) for line in (tmp_path / "out" / "progress.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in logged if "loss" in line}
    assert sorted(losses) == [1, 2, 3] and found == pytest.approx(losses, rel=1e-6), "every step, once"
    # The last evaluation comes after training, and belongs to the same run.
    assert evaluations == pytest.approx([line["eval_loss"] for line in logged if "eval_loss" in line], rel=1e-6)
    assert len(evaluations) == 1
    told = {key: str(arguments[key]) for key in ("learning_rate", "lora_r", "hftune_stage", "hftune_base")}
    assert told == {
        **{"learning_rate": "0.0002", "lora_r": "4"},
        **{"hftune_stage": "sft", "hftune_base": str(tiny_model)},
    }
    assert told_secrets(tmp_path) == []


def told_secrets(folder: Path) -> list[str]:
    """Files that hold a secret of the environment."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 5
    return [str(file) for file in files if any(secret.encode() in file.read_bytes() for secret in SECRETS.values())]
