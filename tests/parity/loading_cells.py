"""Runs of the real scripts one after the other in the same processes, so that a launcher starts once for all.

python tests/parity/loading_cells.py CELLS.json: a list of {"name", "stage", "model", "data", "output", "flags"}; rank 0
writes {name: losses} beside it, as RESULT.json.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest


def run_cells(cells: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The losses of each cell."""
    from accelerate.state import AcceleratorState, GradientState

    from tests.parity.stages import losses, run_stage

    results = {}
    for cell in cells:
        trainer = run_stage(
            cell["stage"],
            *(Path(cell[name]) for name in ("model", "data", "output")),
            *cell["flags"],
            monkeypatch=pytest.MonkeyPatch(),
            steps=4,
        )
        results[cell["name"]] = losses(trainer)
        # accelerate keeps the first run's DeepSpeed plugin for all that follow.
        del trainer
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        gc.collect()
    return results


if __name__ == "__main__":
    (file,) = (Path(argument) for argument in sys.argv[1:] if not argument.startswith("--"))
    found = run_cells(json.loads(file.read_text(encoding="utf-8")))
    if os.environ.get("RANK", "0") == "0":
        file.with_name("RESULT.json").write_text(json.dumps(found), encoding="utf-8")
