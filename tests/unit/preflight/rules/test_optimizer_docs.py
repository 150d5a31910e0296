"""docs/optimizers.md names every optimizer and schedule, and says of each where it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from hftune.preflight.rules.optimizer import INSIDE_BACKWARD, NOT_UNDER_ZERO, PACKAGES

PAGE = (Path(__file__).parents[4] / "docs" / "optimizers.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]


def row(name: str) -> list[str]:
    """The one row whose first cell names it."""
    (found,) = [cells for cells in ROWS if name in re.findall(r"`([^`]*)`", cells[0])]
    return found


@pytest.mark.parametrize("name", [*(entry.value for entry in OptimizerNames), "muon"])
def test_optimizers(name: str) -> None:
    _, alone, zero, _ = row(name)
    assert alone.startswith("refused") == (name in INSIDE_BACKWARD)
    refused = name.startswith(tuple(NOT_UNDER_ZERO)) or name in INSIDE_BACKWARD
    assert zero.startswith("refused") == refused
    package = next((pip for start, (_, pip) in PACKAGES.items() if name.startswith(start)), None)
    assert package is None or refused or name.startswith("adamw_") or f"pip install {package}" in row(name)[0]


@pytest.mark.parametrize("kind", SchedulerType)
def test_schedules(kind: SchedulerType) -> None:
    assert row(kind.value)
