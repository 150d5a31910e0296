"""Metrics as `evaluate` modules that ship with hftune: a metric of the hub would download code."""

from __future__ import annotations

import os
from pathlib import Path

import evaluate

from hftune.distributed import ranks


def load_metric(name: str) -> evaluate.EvaluationModule:
    """The metric in the folder `name` beside this file.

    `evaluate` copies a module's code to its cache before importing it; each process does so under an id of its own.
    """
    folder = Path(__file__).parent / name
    return evaluate.load(str(folder), experiment_id=f"{os.getpid()}-{ranks.rank()}")
