"""A stage's log and its summary, from files as the Trainer writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.errors import ManifestError
from hftune.tools.reporting.stages import StageSummary, read_history, series, summary


def write_state(folder: Path, log: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 4, "log_history": log}))


def test_reads_the_log_of_the_output_folder(tmp_path: Path) -> None:
    write_state(tmp_path, [{"loss": 2.0, "step": 1}])
    write_state(tmp_path / "checkpoint-1", [{"loss": 9.0, "step": 1}])

    assert read_history(tmp_path) == [{"loss": 2.0, "step": 1}]


def test_reads_the_newest_checkpoint_of_an_unfinished_stage(tmp_path: Path) -> None:
    write_state(tmp_path / "checkpoint-9", [{"loss": 9.0, "step": 9}])
    write_state(tmp_path / "checkpoint-10", [{"loss": 10.0, "step": 10}])

    assert read_history(tmp_path) == [{"loss": 10.0, "step": 10}]


def test_reads_what_the_trainer_writes(tmp_path: Path) -> None:
    from transformers import TrainerState

    state = TrainerState(global_step=2, log_history=[{"loss": 2.5, "epoch": 0.5, "step": 1}])
    state.save_to_json(str(tmp_path / "trainer_state.json"))

    assert series(read_history(tmp_path), "loss") == ([1], [2.5])


def test_no_log_is_an_empty_history(tmp_path: Path) -> None:
    assert read_history(tmp_path) == []
    assert read_history(tmp_path / "absent") == []


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"log_history": null}'])
def test_a_broken_log_names_its_file(content: str, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(content)

    with pytest.raises(ManifestError, match=r"trainer_state\.json"):
        read_history(tmp_path)


def test_series_takes_numbers_in_order_of_steps() -> None:
    history = [
        {"loss": 3, "step": 1},
        {"eval_loss": 2.5, "step": 1},  # another quantity
        {"loss": 1.0, "step": 3},
        {"loss": 2.0, "step": 2},  # out of order
        {"loss": 0.5, "step": 3},  # logged again
        {"loss": "0.1", "step": 4},  # no number
        {"loss": True, "step": 5},
        {"loss": 0.2},  # no step
    ]

    assert series(history, "loss") == ([1, 2, 3], [3, 2.0, 0.5])
    assert series(history, "absent") == ([], [])


def test_summary() -> None:
    manifest = {
        "stage": "sft",
        "steps": 20,
        "trained_tokens": 1000,
        "wall_seconds": 50.0,
        "metrics": {"train_runtime": 40.0, "eval_loss": 1.5, "note": "not a number"},
    }
    # 20 losses: 19 down to 0. The last tenth is two of them, 1 and 0.
    history = [{"loss": float(19 - step), "step": step} for step in range(20)]

    assert summary(manifest, history) == StageSummary(
        stage="sft",
        steps=20,
        first_loss=19.0,
        last_loss=0.5,
        trained_tokens=1000,
        trained_tokens_per_second=25.0,  # 1000 tokens in the 40 seconds of training
        wall_seconds=50.0,
        metrics={"train_runtime": 40.0, "eval_loss": 1.5},
    )


@pytest.mark.parametrize("manifest", [{}, {"stage": None, "metrics": None, "steps": None}])
def test_summary_of_nothing(manifest: dict[str, Any]) -> None:
    assert summary(manifest, []) == StageSummary(stage="?")


def test_summary_fills_gaps_from_what_there_is() -> None:
    found = summary({"trained_tokens": 10, "metrics": {"train_runtime": 5.0}}, [{"loss": 1.0, "step": 7}])

    assert (found.steps, found.wall_seconds, found.trained_tokens_per_second) == (7, 5.0, 2.0)
    assert summary({"trained_tokens": 10, "wall_seconds": 4}, []).trained_tokens_per_second == 2.5
    assert summary({"trained_tokens": 10, "wall_seconds": 0}, []).trained_tokens_per_second is None
