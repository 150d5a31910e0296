"""What the Trainer logged in a stage's output folder, and its summary in a few numbers.

Anything may be missing: a stage may have been stopped, or have logged nothing. What is not there is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hftune.errors import ManifestError
from hftune.opening.model_files import read_checked

STATE_NAME = "trainer_state.json"
"""The file in which the Trainer keeps its log."""


@dataclass(frozen=True)
class StageSummary:
    """One stage in a few numbers; None for what its folder does not tell."""

    stage: str
    steps: int | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    """Mean of the last 10% of the logged losses: the last one alone is mostly noise."""
    trained_tokens: int | None = None
    trained_tokens_per_second: float | None = None
    wall_seconds: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The Trainer's log of a stage, one dict per logged line.

    A stage that has not finished has its log only in its newest checkpoint. No log at all is an empty list.
    """
    folder = Path(folder)
    path = folder / STATE_NAME
    if not path.is_file():
        # By number: as text, checkpoint-200 sorts behind checkpoint-1000.
        found = max(folder.glob(f"checkpoint-*/{STATE_NAME}"), key=_checkpoint_step, default=None)
        if found is None:
            return []
        path = found
    fix = "train the stage again, or copy the file back from its checkpoint"
    found = read_checked(path, fix=fix).get("log_history")
    if found is None:
        raise ManifestError(f"{path} is no Trainer's state: it has no log_history", place=str(path), fix=fix)
    return list(found)


def series(history: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one logged quantity; where a step was logged twice, its last value."""
    points: dict[int, float] = {}
    for line in history:
        step, value = _number(line.get("step")), _number(line.get(key))
        if step is not None and value is not None:
            # A resumed run logs some steps again; the later value is that of the weights that were kept.
            points[int(step)] = value
    steps = sorted(points)
    return steps, [points[step] for step in steps]


def summary(manifest: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> StageSummary:
    """A stage in a few numbers, from its manifest and, for the losses, from its log.

    The speed is over the time spent in training (`train_seconds`) where that is known, not over loading and saving.
    """
    metrics = {
        key: value for key, raw in (manifest.get("metrics") or {}).items() if (value := _number(raw)) is not None
    }
    steps, losses = series(history, "loss")
    wall_seconds = _first(_number(manifest.get("wall_seconds")), metrics.get("train_runtime"))
    tokens = _number(manifest.get("trained_tokens"))
    # `train_runtime` is that of the last start alone, where a run was resumed.
    seconds = _first(_number(manifest.get("train_seconds")), metrics.get("train_runtime"), wall_seconds)
    step_count = _first(_number(manifest.get("steps")), float(steps[-1]) if steps else None)
    return StageSummary(
        stage=str(manifest.get("stage") or "?"),
        steps=None if step_count is None else int(step_count),
        first_loss=losses[0] if losses else None,
        last_loss=_mean_of_the_end(losses),
        trained_tokens=None if tokens is None else int(tokens),
        trained_tokens_per_second=tokens / seconds if tokens is not None and seconds else None,
        wall_seconds=wall_seconds,
        metrics=metrics,
    )


def _mean_of_the_end(values: Sequence[float]) -> float | None:
    if not values:
        return None
    # Rounded up: a short run has at least one value at its end.
    end = values[-math.ceil(len(values) / 10) :]
    return sum(end) / len(end)


def _number(value: Any) -> float | None:
    """The value where it is a number; None for anything else, True and False included."""
    # In Python a bool is an int.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _first(*values: float | None) -> float | None:
    """The first value that is known."""
    return next((value for value in values if value is not None), None)


def _checkpoint_step(state: Path) -> int:
    number = state.parent.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
