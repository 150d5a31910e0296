"""Metrics as `evaluate` modules that ship with hftune: a metric of the hub would download code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hftune.distributed import ranks

if TYPE_CHECKING:
    import evaluate


def load_metric(name: str) -> evaluate.EvaluationModule:
    """The metric in the folder `name` beside this file.

    `evaluate` copies a module's code to its cache before importing it; each process does so under an id of its own.
    """
    import evaluate  # heavy, and only needed where there is something to evaluate

    folder = Path(__file__).parent / name
    return evaluate.load(str(folder), experiment_id=f"{os.getpid()}-{ranks.rank()}")
