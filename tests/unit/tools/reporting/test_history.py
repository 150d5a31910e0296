"""A stage's summary, from its manifest and what it has logged."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.tools.reporting.stages import StageSummary, series, summary


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
