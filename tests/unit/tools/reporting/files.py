"""Folders of runs as they stand while they train, made up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from hftune.checkpoints.manifest import write_manifest


def log_line(step: int, at: float, **more: Any) -> str:
    """A line of progress.jsonl: two seconds and 100 tokens a step, of 30."""
    line = {"loss": 3 / step, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 50.0, "memory_gb": 1.5}
    line |= {"step": step, "max_steps": 30, "time": at + 2 * step, "tokens": 100 * step, **more}
    return json.dumps(line) + "\n"


def write_run(folder: Path, steps: int, status: str = "running", **manifest: Any) -> None:
    """The folder of a run that has made so many steps, the last of them just now."""
    folder.mkdir(parents=True, exist_ok=True)
    at = time.time() - 2 * steps
    began = json.dumps({"began": True, "step": 0, "max_steps": 30, "time": at, "tokens": None}) + "\n"
    (folder / "progress.jsonl").write_text(began + "".join(log_line(step, at) for step in range(1, steps + 1)))
    about = {"stage": folder.name, "status": status, "command": [f"run_{folder.name}.py"], "base": {"name": "base"}}
    write_manifest(folder, {**about, "arguments": {"training": {"learning_rate": 1e-3}}, **manifest})
