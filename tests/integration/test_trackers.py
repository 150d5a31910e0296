"""What arrives at each tracker, offline, from two processes: every figure in one run, arguments, name and tags.

A tracker whose package is not installed is skipped: `pip install mlflow trackio` has all of them tried.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SECRETS = {
    "WANDB_API_KEY": "wandb-key-of-nobody-0123456789abcdef0123",
    "MLFLOW_TRACKING_PASSWORD": "mlflow-password-of-nobody",
    "HF_TOKEN": "hf_tokenOfNobodyAtAll0123456789",
}


@dataclass
class Arrived:
    """What a tracker holds of one run."""

    losses: dict[int, float] = field(default_factory=dict)
    evaluations: list[float] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    name: str = ""


def tensorboard(folder: Path) -> Arrived:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (logs,) = {file.parent for file in (folder / "out" / "runs").rglob("events.*")}
    events = EventAccumulator(str(logs)).Reload()
    text = events.Tensors("args/text_summary")[0].tensor_proto.string_val[0].decode()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    return Arrived(losses, [event.value for event in events.Scalars("eval/loss")], json.loads(text))


def mlflow(folder: Path) -> Arrived:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs(["0"])
    losses = {one.step: one.value for one in client.get_metric_history(run.info.run_id, "loss")}
    evaluations = [one.value for one in client.get_metric_history(run.info.run_id, "eval_loss")]
    assert run.info.status == "FINISHED"
    return Arrived(losses, evaluations, run.data.params, run.info.run_name)


def trackio(folder: Path) -> Arrived:
    (file,) = (folder / "trackio").glob("*.db")
    with sqlite3.connect(file) as base:
        logged = [json.loads(text) for (text,) in base.execute("select metrics from metrics order by step")]
        ((name, config),) = base.execute("select run_name, config from configs").fetchall()
    losses = {one["train/global_step"]: one["train/loss"] for one in logged if "train/loss" in one}
    return Arrived(losses, [one["eval/loss"] for one in logged if "eval/loss" in one], json.loads(config), name)


READERS = {"tensorboard": tensorboard, "mlflow": mlflow, "trackio": trackio}


@pytest.mark.parametrize("name", READERS)
def test_what_arrives(
    name: str,
    run: Callable,
    tiny_model: Path,
    tiny_data: Path,
    tmp_path: Path,
    netguard_log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    places = {"TRACKIO_DIR": str(tmp_path / "trackio"), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    for variable, value in (places | SECRETS).items():
        monkeypatch.setenv(variable, value)
    run(
        "run_sft.py",
        *("--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path / "out"), "--run_name", "my-run"),
        *("--train_file_dir", str(tiny_data / "sft"), "--validation_file_dir", str(tiny_data / "sft_eval")),
        *("--eval_strategy", "no", "--save_strategy", "no", "--max_steps", "3", "--logging_steps", "1"),
        *("--use_peft", "True", "--lora_rank", "4", "--gradient_checkpointing", "False", "--report_to", name),
        launcher="torchrun --nproc_per_node 2",
        warm=name != "trackio",  # which reads its folder when it is imported
    ).check()

    found = READERS[name](tmp_path)
    logged = [json.loads(line) for line in (tmp_path / "out" / "progress.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in logged if "loss" in line}
    assert sorted(losses) == [1, 2, 3] and found.losses == pytest.approx(losses, rel=1e-6), "every step, once"
    # The last evaluation comes after training, and belongs to the same run.
    assert found.evaluations == pytest.approx([line["eval_loss"] for line in logged if "eval_loss" in line], rel=1e-6)
    assert len(found.evaluations) == 1
    told = {key: str(found.arguments[key]) for key in ("learning_rate", "lora_r", "hftune_stage", "hftune_base")}
    assert told == {
        **{"learning_rate": "0.0002", "lora_r": "4"},
        **{"hftune_stage": "sft", "hftune_base": str(tiny_model)},
    }
    assert found.name == ("my-run" if name != "tensorboard" else "")

    assert told_secrets(tmp_path) == []
    assert not netguard_log.exists() or name not in netguard_log.read_text()


def told_secrets(folder: Path) -> list[str]:
    """Files that hold a secret of the environment."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 5
    return [str(file) for file in files if any(secret.encode() in file.read_bytes() for secret in SECRETS.values())]
