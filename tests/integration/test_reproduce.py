"""`hftune reproduce`: the same run once more, and what is named where it is not the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hftune.tools.reporting.stages import read_progress
from hftune.tools.reproducing import run as reproducing

STAGES = {"sft": "sft", "dpo": "pairs"}


@pytest.fixture
def train(run: Callable, tiny_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """A run of six steps; its folder."""

    def train(stage: str, data: Path, *flags: str, processes: int = 1, name: str = "out") -> Path:
        folder = tmp_path / name
        run(
            f"run_{stage}.py",
            *("--model_name_or_path", str(tiny_model), "--train_file_dir", str(data), "--output_dir", str(folder)),
            *("--per_device_train_batch_size", "2", "--max_steps", "6", "--logging_steps", "1", "--report_to", "none"),
            *("--gradient_checkpointing", "False", "--learning_rate", "1e-3", *flags),
            launcher=f"deepspeed --num_gpus {processes}" if processes > 1 else "python",
            warm=True,
        ).check()
        return folder

    return train


@pytest.fixture
def reproduced(run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[bool, str]]:
    """Whether it was reproduced, and what was said; the new run is forked, with as many processes as are asked for."""

    def start(stage: str, manifest: dict[str, Any], words: list[str]) -> None:
        world = manifest["world_size"]
        launcher = f"deepspeed --num_gpus {world}" if world > 1 else "python"
        run(f"run_{stage}.py", *words, launcher=launcher, warm=True).check()

    def ask(folder: Path, *rest: str, steps: int | None = None) -> tuple[bool, str]:
        monkeypatch.setattr(reproducing, "start", start)
        same = reproducing.reproduced(folder, folder.with_name("again"), steps, 0.0, list(rest))
        return same, capsys.readouterr().out

    return ask


@pytest.mark.parametrize("stage", STAGES)
def test_to_the_last_bit(stage: str, train: Callable, reproduced: Callable, tiny_data: Path) -> None:
    folder = train(stage, tiny_data / STAGES[stage])
    same, said = reproduced(folder, steps=4)
    assert same, said
    assert "4 logs compared, of steps 1 to 4" in said and "different now" not in said
    for title in ("data order", "loss", "gradient norm", "learning rate"):
        assert f"{title}: the same to the last bit" in said


def test_two_processes_and_a_run_that_was_resumed(train: Callable, reproduced: Callable, tiny_data: Path) -> None:
    """Stopped at step 3 and resumed, with a log every second step: sums that lie on both sides are whole."""
    saving = ("--save_steps", "3", "--logging_steps", "2", "--deepspeed", "ds_configs/zero2.json")
    stop = ("--callbacks", 'hftune.trainers.callbacks:StopAt{"step": 3}')
    folder = train("sft", tiny_data / "sft", *saving, *stop, processes=2)
    train("sft", tiny_data / "sft", *saving, "--overwrite_output_dir", "--resume_from_checkpoint",
          str(folder / "checkpoint-3"), processes=2)  # fmt: skip
    assert [line["step"] for line in read_progress(folder) if line.get("began")] == [0, 3]
    same, said = reproduced(folder)
    assert same, said
    assert "3 logs compared, of steps 2 to 6" in said


def test_a_changed_data_file_is_named(train: Callable, reproduced: Callable, tiny_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    lines = (tiny_data / "sft" / "train.jsonl").read_text().splitlines()
    (data / "a.jsonl").write_text("\n".join(lines))
    folder = train("sft", data)
    (data / "a.jsonl").write_text("\n".join(reversed(lines)))
    same, said = reproduced(folder, steps=2)
    assert not same
    assert "first difference: step 1: other records, or in another order" in said
    assert "a.jsonl" in said and "data train fingerprint: was" in said


def test_a_changed_seed_and_a_changed_version_are_named(
    train: Callable, reproduced: Callable, tiny_data: Path, tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("seed: 1\n")
    folder = train("sft", tiny_data / "sft", "--config", str(config))
    config.write_text("seed: 2\n")
    file = folder / "hftune.json"
    manifest = json.loads(file.read_text())
    manifest["versions"]["trl"] = "0.1"
    file.write_text(json.dumps(manifest))
    same, said = reproduced(folder, steps=2)
    assert not same and "run.yaml" in said
    assert "arguments seed: was 1, is 2" in said and "versions trl: was 0.1, is" in said


@pytest.mark.slow
def test_as_a_user_types_it(run: Callable, train: Callable, tiny_data: Path) -> None:
    """With processes and threads of its own; the exit code is the answer."""
    folder = train("sft", tiny_data / "sft")
    finished = run("-m", "hftune.cli", "reproduce", str(folder), "--steps", "3").check()
    assert "3 logs compared" in finished.output and "loss: the same to the last bit" in finished.output
