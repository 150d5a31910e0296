"""What arrives at each tracker, offline, from two processes: every figure in one run, arguments, name and tags.

A tracker whose package is not installed is skipped: `pip install wandb mlflow swanlab trackio` has all of them tried.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

SECRETS = {
    "WANDB_API_KEY": "wandb-key-of-nobody-0123456789abcdef0123",
    "SWANLAB_API_KEY": "swanlab-key-of-nobody-0123",
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
    tags: list[str] = field(default_factory=list)


def tensorboard(folder: Path) -> Arrived:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (logs,) = {file.parent for file in (folder / "out" / "runs").rglob("events.*")}
    events = EventAccumulator(str(logs)).Reload()
    text = events.Tensors("args/text_summary")[0].tensor_proto.string_val[0].decode()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    return Arrived(losses, [event.value for event in events.Scalars("eval/loss")], json.loads(text))


def records(file: Path) -> Iterator[bytes]:
    """The records of a log as LevelDB has them, which W&B and SwanLab write behind seven bytes of their own."""
    data, at, part = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield part
            part = b""


def wandb(folder: Path) -> Arrived:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    found = Arrived()
    for raw in records(file):
        record = Record()
        record.ParseFromString(raw)
        if record.run.display_name:
            found.name, found.tags = record.run.display_name, [*record.run.tags]
        found.arguments |= {one.key: json.loads(one.value_json) for one in record.config.update if one.key}
        items = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
        if "train/loss" in items:
            found.losses[items["train/global_step"]] = items["train/loss"]
        found.evaluations += [items["eval/loss"]] if "eval/loss" in items else []
    return found


def mlflow(folder: Path) -> Arrived:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs(["0"])
    losses = {one.step: one.value for one in client.get_metric_history(run.info.run_id, "loss")}
    evaluations = [one.value for one in client.get_metric_history(run.info.run_id, "eval_loss")]
    tags = [run.data.tags[f"hftune.{name}"] for name in ("stage", "base")]
    assert run.info.status == "FINISHED"
    return Arrived(losses, evaluations, run.data.params, run.info.run_name, ["hftune", *tags])


def swanlab(folder: Path) -> Arrived:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    (file,) = (folder / "swanlog").glob("run-*/*.swanlab")
    found = Arrived()
    for raw in records(file):
        record = Record()
        record.ParseFromString(raw)
        if record.start.name:
            found.name, found.tags = record.start.name, [*record.start.tags]
        if record.scalar.key == "train/loss":
            found.losses[record.scalar.step] = record.scalar.value.number
        found.evaluations += [record.scalar.value.number] if record.scalar.key == "eval/loss" else []
    content = yaml.safe_load((file.parent / "files" / "config.yaml").read_text())
    found.arguments = {name: one["value"] for name, one in content.items()}
    return found


def trackio(folder: Path) -> Arrived:
    (file,) = (folder / "trackio").glob("*.db")
    with sqlite3.connect(file) as base:
        logged = [json.loads(text) for (text,) in base.execute("select metrics from metrics order by step")]
        ((name, config),) = base.execute("select run_name, config from configs").fetchall()
    losses = {one["train/global_step"]: one["train/loss"] for one in logged if "train/loss" in one}
    return Arrived(losses, [one["eval/loss"] for one in logged if "eval/loss" in one], json.loads(config), name)


READERS = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow, "swanlab": swanlab, "trackio": trackio}
TAGGED = ("wandb", "mlflow", "swanlab")


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
    places = {"WANDB_DIR": "", "TRACKIO_DIR": "trackio", "SWANLAB_LOG_DIR": "swanlog", "SWANLAB_LOGDIR": "swanlog"}
    offline = {
        "WANDB_MODE": "offline",
        "SWANLAB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    for variable, value in (offline | SECRETS | {one: str(tmp_path / at) for one, at in places.items()}).items():
        monkeypatch.setenv(variable, value)
    finished = run(
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
    assert {"hftune", "sft"} <= {*found.tags} if name in TAGGED else not found.tags

    (place,) = json.loads((tmp_path / "out" / "hftune.json").read_text())["trackers"].values()
    assert finished.output.count(f"{name}: {place}") == 1
    assert told_secrets(tmp_path) == []
    assert not netguard_log.exists() or name not in netguard_log.read_text()


def told_secrets(folder: Path) -> list[str]:
    """Files that hold a secret of the environment."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 5
    return [str(file) for file in files if any(secret.encode() in file.read_bytes() for secret in SECRETS.values())]
