"""Runs a script with a fault in it that the matrix must see: python tests/matrix/planted.py FAULT run_X.py FLAGS

Each was one of hftune's (README's promise that nothing is silent was broken by it), and each is a line or two.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


def head_left_out() -> None:
    """Without a token to score a process does not call a trained head."""
    from hftune.models.kernels import heads

    whole = heads.through_module

    def through_module(head: Any, hidden: torch.Tensor, *rest: Any) -> Any:
        found, nothing = whole(head, hidden, *rest)
        if len(hidden) > 1:
            return found, nothing
        # The one token that stands for none: its gradient reaches the states, and not the head.
        ((first, *columns),) = found
        return [(first.detach() + 0.0 * hidden.sum(), *columns)], 0.0

    for module in list(sys.modules.values()):
        if getattr(module, "through_module", None) is whole:
            module.through_module = through_module  # type: ignore[attr-defined]


def recorded_in_16_bits() -> None:
    """Log-probabilities are kept while drawing as if the run computed in float32."""
    from hftune.trainers.online import base

    together = base.decoding_together
    base.decoding_together = lambda model, dtype: together(model, torch.float32)  # type: ignore[attr-defined]


def an_opinion_on_all() -> None:
    """A prompt of which one answer has no score makes no pair."""
    from hftune.trainers.online import dpo

    of_all = dpo.best_and_worst

    def best_and_worst(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        best, worst, differ = of_all(scores.nan_to_num())
        return best, worst, differ & ~scores.isnan().any(dim=1)

    dpo.best_and_worst = best_and_worst


def portions_across_epochs() -> None:
    """A stream is dealt in portions as large as an epoch."""
    from hftune.data.streaming import StreamingDataset

    is_left = StreamingDataset._is_left

    def in_portions(self: StreamingDataset, position: int) -> bool:
        group, self.group = self.group, 16
        try:
            return is_left(self, position)
        finally:
            self.group = group

    StreamingDataset._is_left = in_portions  # type: ignore[method-assign]


def order_of_the_first_epoch() -> None:
    """Samplers with a generator of their own are not told their epoch."""
    from hftune.trainers.features import order

    order.set_epoch = lambda *_: None  # type: ignore[assignment]


def new_answers() -> None:
    """What is left of a round of answers is not in its checkpoint."""
    from hftune.trainers.features.answers import AnswerRound

    AnswerRound.state = lambda *_: {}  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "head_left_out": head_left_out,
    "recorded_in_16_bits": recorded_in_16_bits,
    "an_opinion_on_all": an_opinion_on_all,
    "portions_across_epochs": portions_across_epochs,
    "order_of_the_first_epoch": order_of_the_first_epoch,
    "new_answers": new_answers,
}

if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    sys.argv = sys.argv[2:]
    runpy.run_path(str(ROOT / sys.argv[0]), run_name="__main__")
