"""Figures of preference optimisation: means over all pairs of all ranks, each counted once."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset, concatenate_datasets

from hftune.constants import FILLER
from hftune.distributed import ranks
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run
from hftune.trainers.features.sums import MetricSums

LOSS_PARTS = ("loss/pairs", "loss/tokens")
"""Metrics whose sum is the loss."""


class PairFigures(Feature):
    """Logs under the names that TRL's DPO trainer has; TRL (1.16) reads its metrics back in every step.

    Args:
        device: Where sums are kept, so that adding to them waits for nothing.

    Attributes:
        metrics: Of training ("train") and evaluation ("eval").
        seen_tokens: Trained on by this process.
    """

    def __init__(self, device: torch.device) -> None:
        self.metrics = {mode: MetricSums(device) for mode in ("train", "eval")}
        self.seen_tokens = torch.zeros((), dtype=torch.long, device=device)

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """The metrics since the last log, next to the training loss."""
        if "loss" in logs:
            found = self.metrics["train"].means(run.accelerator)
            whole_loss(found)  # the Trainer's own, over accumulated batches, is there
            logs |= found
            logs["num_tokens"] = float(run.accelerator.reduce(self.seen_tokens.double(), "sum"))

    def begin_loop(self, run: Run) -> None:
        """Begin to add up."""
        self.metrics["eval"] = MetricSums(self.seen_tokens.device)

    def end_loop(self, run: Run, metrics: dict[str, float], prefix: str) -> None:
        """Loss and metrics over all pairs."""
        found = self.metrics["eval"].means(run.accelerator)
        found["loss"] = whole_loss(found)
        metrics.update({f"{prefix}_{name}": value for name, value in found.items()})

    def state(self, run: Run) -> dict[str, Any]:
        """Sums since the last log and tokens so far, over all ranks."""
        pairs = self.metrics["train"].totals(run.accelerator)
        return {"pairs": pairs, "seen": int(run.accelerator.reduce(self.seen_tokens.double(), "sum"))}

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Sums over all processes are given to one of them."""
        # A sum over ranks, of which the number may have changed.
        self.seen_tokens.fill_(saved.get("seen", 0) if ranks.is_main() else 0)
        self.metrics["train"].restore(saved.get("pairs", {}))


def whole_loss(figures: dict[str, float]) -> float:
    """Take the parts of the loss out of what was measured: the mean over pairs and that over chosen tokens."""
    return sum(figures.pop(name, 0.0) for name in LOSS_PARTS)


def marked(dataset: Dataset, multiple: int) -> Dataset:
    """The dataset with a column that marks copies of its first record, as many as lack to a multiple of `multiple`."""
    # So that every rank has whole batches; accelerate would repeat records, and they would count twice.
    missing = -len(dataset) % multiple
    whole = concatenate_datasets([dataset, dataset.select([0] * missing)]) if missing else dataset
    return whole.add_column(FILLER, [False] * len(dataset) + [True] * missing)
