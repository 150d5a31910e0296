"""What the Trainer logs, as it logs it, in a file that others can follow: `progress.jsonl` in the output folder.

A line a log: what was logged, `step` of `max_steps`, `time` (seconds since the epoch), `memory_gb` (the peak of this
process: of its GPU, or resident), `tokens` seen so far and `batch`, a digest of what the steps since the last log have
trained on. The Trainer's own log has no times, and is written with checkpoints only.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.trainer_utils import has_length

from hftune import terminal
from hftune.logging import get_logger
from hftune.opening.own_file import open_own
from hftune.visible import clock, figures, progress_figures

NAME = "progress.jsonl"
_REDRAW = 0.1
"""Seconds between two changes of a line."""

_NOT_SHOWN = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "eval_num_tokens", "total_flos")


class ProgressFile(TrainerCallback):
    """Appends a line for each log; a resumed run appends to what is there.

    Args:
        tokens: Those seen so far, for stages whose trainer does not count them itself.
        batches: The digest of the batches up to the log that is being written; None: not known.
    """

    def __init__(self, tokens: Callable[[], float], batches: Callable[[], int | None] = lambda: None) -> None:
        self.tokens, self.batches = tokens, batches

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first line says from which step training resumes; it is not joined to one that a kill cut off."""
        self._write(args, state, {"began": True}, before=b"\n")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """One line."""
        self._write(args, state, logs or {})

    def _write(self, args: Any, state: Any, logs: dict[str, Any], before: bytes = b"") -> None:
        if not state.is_world_process_zero:
            return
        line = {
            **{name: value for name, value in logs.items() if isinstance(value, int | float)},
            "step": state.global_step,
            "max_steps": state.max_steps,
            "time": round(time.time(), 3),
            "memory_gb": round(peak_memory() / 1e9, 3),
            # TRL's trainers count what they trained.
            "tokens": float(logs["num_tokens"]) if "num_tokens" in logs else round(self.tokens()) or None,
            **({"batch": self.batches()} if "loss" in logs else {}),
        }
        file = Path(str(args.output_dir)) / NAME
        file.parent.mkdir(parents=True, exist_ok=True)
        # One write a line: a run that is killed leaves whole lines, and at most one cut off at the end.
        with open_own(file) as stream:
            stream.write((before if stream.tell() else b"") + json.dumps(line).encode() + b"\n")


def use_progress_line(trainer: Trainer) -> None:
    """Show where training is in one line in place of the Trainer's bars, and what it logs as lines of hftune's."""
    for shown in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(shown)
    if trainer.is_world_process_zero():
        trainer.add_callback(ProgressLine())


class ProgressLine(TrainerCallback):
    """One line that changes in place at a terminal; elsewhere, and in the log, a line a log.

    Figures of evaluations are lines everywhere.
    """

    def __init__(self) -> None:
        self._began, self._first, self._batch, self._drawn = time.monotonic(), 0, 0, 0.0
        self._latest: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The time that is left is judged by the steps from here on."""
        self._began, self._first = time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The line moves."""
        self._draw(args, ", ".join([self._steps(state), *progress_figures(self._latest, self._left(state))]))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The line counts the batches of an evaluation."""
        self._batch += 1
        loader = kwargs.get("eval_dataloader")
        of = f"/{len(loader)}" if loader is not None and has_length(loader) else ""
        self._draw(args, f"{self._steps(state)}, evaluating: batch {self._batch}{of}")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """A line for figures of an evaluation, and for those of training where no line moves."""
        logs = logs or {}
        evaluated = any(name.startswith("eval_") for name in logs)
        if "train_runtime" in logs:  # the summary of the run has these
            return
        words = [self._steps(state), *figures(logs, [name for name in logs if name not in _NOT_SHOWN])]
        if not evaluated:
            self._latest = logs | {"memory_gb": peak_memory() / 1e9}
            words += [*figures(self._latest, ["memory_gb"]), *self._left(state)]
        text = ", ".join(words)
        if evaluated or not self._moves(args):
            get_logger().info("%s", text)
        else:
            terminal.log_only(text)
        if evaluated:
            self._batch = 0

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The line has done its work."""
        terminal.clear_progress()

    def _draw(self, args: Any, text: str) -> None:
        if self._moves(args) and time.monotonic() - self._drawn > _REDRAW:
            self._drawn = time.monotonic()
            terminal.show_progress(text)

    def _moves(self, args: Any) -> bool:
        return not args.disable_tqdm and terminal.err().isatty()

    def _left(self, state: Any) -> list[str]:
        done, left = state.global_step - self._first, state.max_steps - state.global_step
        # The mean since this start: steps before an interruption had another machine, perhaps.
        seconds = (time.monotonic() - self._began) / max(done, 1) * left
        return [f"{clock(seconds)} left"] if left > 0 else []

    def _steps(self, state: Any) -> str:
        return f"step {state.global_step}/{state.max_steps}" if state.max_steps else "evaluation"


def peak_memory() -> int:
    """Bytes: of the GPU that this process uses, else resident."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    # Linux gives kilobytes, macOS bytes.
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
