"""What the Trainer logs, as it logs it, in a file that others can follow: `progress.jsonl` in the output folder.

A line a log: what was logged, `step` of `max_steps`, `time` (seconds since the epoch), `memory_gb` (the peak of this
process: of its GPU, or resident) and `tokens` seen so far. The Trainer's own log has no times, and is written with
checkpoints only.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

NAME = "progress.jsonl"


class ProgressFile(TrainerCallback):
    """Appends a line for each log; a run that goes on appends to what is there.

    Args:
        tokens_per_epoch: For stages whose trainer does not count tokens itself; None: not known.
    """

    def __init__(self, tokens_per_epoch: int | None) -> None:
        self.tokens_per_epoch = tokens_per_epoch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The first line says from which step training goes on; it does not join one that a kill cut off."""
        self._write(args, state, {"began": True}, before=b"\n")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """One line."""
        self._write(args, state, logs or {})

    def _write(self, args: TrainingArguments, state: TrainerState, logs: dict[str, Any], before: bytes = b"") -> None:
        if not state.is_world_process_zero:
            return
        line = {
            **{name: value for name, value in logs.items() if isinstance(value, int | float)},
            "step": state.global_step,
            "max_steps": state.max_steps,
            "time": round(time.time(), 3),
            "memory_gb": round(peak_memory() / 1e9, 3),
            "tokens": self._tokens(state, logs),
        }
        file = Path(str(args.output_dir)) / NAME
        file.parent.mkdir(parents=True, exist_ok=True)
        # One write a line: a run that is killed leaves whole lines, and at most one cut off at the end.
        with file.open("ab") as stream:
            stream.write((before if stream.tell() else b"") + json.dumps(line).encode() + b"\n")

    def _tokens(self, state: TrainerState, logs: dict[str, Any]) -> float | None:
        if "num_tokens" in logs:
            return float(logs["num_tokens"])
        if self.tokens_per_epoch and state.epoch:
            return round(self.tokens_per_epoch * state.epoch)
        return None


def peak_memory() -> int:
    """Bytes: of the GPU that this process uses, else resident."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
