"""Figures over a whole run, also where it was interrupted: mean loss, tokens, seconds, and what was not logged yet.

The Trainer (transformers 5.23) begins all of them anew when it resumes, and takes the losses since the last log from
one process alone.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from hftune.distributed import ranks
from hftune.opening.model_files import read_checked

NAME = "hftune_totals.json"
"""The file of a checkpoint that holds them."""


class TotalsMixin:
    """Put before a `Trainer` subclass."""

    _loss_from, _seconds_before = 0, 0.0
    _resumed: dict[str, Any] | None = None
    _train_began: float | None = None

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_Restore(self))

    def train(self: Any, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As the Trainer's; what a checkpoint says of the run before it is taken up."""
        file = Path(str(resume_from_checkpoint)) / NAME
        self._resumed = read_checked(file) if resume_from_checkpoint and file.is_file() else None
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)  # type: ignore[misc]

    @property
    def train_seconds(self: Any) -> float:
        """Seconds of training so far, those before an interruption included."""
        return float(self._seconds_before + (time.time() - self._train_began if self._train_began else 0.0))

    def take_up_totals(self: Any) -> None:
        """When training begins: the Trainer has set everything to 0."""
        self._train_began = time.time()
        # A checkpoint without the file, of an earlier version: the mean loss is that of the steps from here on.
        self._loss_from = self.state.global_step
        if self._resumed is None:
            return
        saved, own = self._resumed, ranks.rank()
        pending = saved["pending"]
        alike = len(pending) == ranks.world_size()  # then each takes its own, and the sums are the same to the bit
        self._loss_from, self._seconds_before = saved["from_step"], saved["seconds"]
        self._total_loss_scalar, self._globalstep_last_logged = saved["loss"], saved["logged_step"]
        self._tr_loss += pending[own] if alike else sum(pending) / len(pending)
        self.take_up_tokens(saved)

    def take_up_tokens(self: Any, saved: dict[str, Any]) -> None:
        """Counts of tokens and sums of metrics since the last log; those over processes are given to one of them."""
        if hasattr(self, "_total_train_tokens"):
            self._total_train_tokens = saved["tokens"]
        if hasattr(self, "seen_tokens"):
            self.seen_tokens.fill_(saved["seen"] if ranks.is_main() else 0)
        if hasattr(self, "metrics") and ranks.is_main():
            self.metrics["train"].take_up(saved["pairs"])
        if hasattr(self, "token_sums") and saved["sums"] is not None:
            sums = self.token_sums["train"]
            whole = torch.tensor(saved["sums"], dtype=torch.float64, device=sums.device)
            sums.sums = whole if ranks.is_main() else torch.zeros_like(whole)

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As the Trainer's; the mean loss at the end is that of all steps and of all processes."""
        if "train_runtime" in logs and "train_loss" in logs:
            # The Trainer has just added what this process alone has not logged.
            logged = self._total_loss_scalar - self._tr_loss.item()
            total = logged + float(self.accelerator.reduce(self._tr_loss.detach().clone(), "mean"))
            logs["train_loss"] = total / max(self.state.global_step - self._loss_from, 0.001)
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _save_beside(self: Any, folder: Path) -> None:
        super()._save_beside(folder)  # type: ignore[misc]
        totals = {
            "from_step": self._loss_from,
            "loss": self._total_loss_scalar,
            "pending": ranks.gathered_objects(float(self._tr_loss)),
            "logged_step": self._globalstep_last_logged,
            "seconds": self.train_seconds,
            **self._tokens(),
        }
        if ranks.is_main():
            (folder / NAME).write_text(json.dumps(totals), encoding="utf-8")

    def _tokens(self: Any) -> dict[str, Any]:
        """What `take_up_tokens` takes; every rank must ask."""
        found: dict[str, Any] = {
            "tokens": getattr(self, "_total_train_tokens", 0),
            "seen": 0,
            "sums": None,
            "pairs": {},
        }
        if hasattr(self, "metrics"):
            found["pairs"] = self.metrics["train"].sums(self.accelerator)
        if hasattr(self, "seen_tokens"):
            found["seen"] = int(self.accelerator.reduce(self.seen_tokens.double(), "sum"))
        if hasattr(self, "token_sums"):
            sums = self.token_sums["train"]
            own = torch.zeros(4, dtype=torch.float64, device=sums.device) if sums.sums is None else sums.sums.clone()
            whole = self.accelerator.reduce(own, "sum").tolist()
            found["sums"] = whole if any(whole) else None
        return found


class _Restore(TrainerCallback):
    """Calls `take_up_totals`; the Trainer has no other place between its zeros and the first step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Once the state is that of the checkpoint."""
        self.trainer.take_up_totals()
