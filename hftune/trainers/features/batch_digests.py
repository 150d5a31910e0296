"""A number for what each step has trained on: two runs with the same numbers saw the same tokens in the same order."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from hftune.constants import FILLER
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run

BITS = 40
"""Of a digest: JSON keeps whole numbers up to 53 bits, and the sums of 2^13 processes fit into those."""
_MASK = (1 << BITS) - 1


def digest(inputs: Any) -> torch.Tensor:
    """A scalar for a micro batch, below 2^40: a sum over its tokens and their places in their documents.

    Sums do not depend on how a batch is shared out, padded or laid out flat, nor on rows that only fill it up. Other
    inputs (prompts of RL) are read as text.
    """
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if not isinstance(ids, torch.Tensor):
        return torch.tensor(sum(_of_text(each) for each in _records(inputs)) & _MASK)
    mask, places = inputs.get("attention_mask"), inputs.get("position_ids")
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
        kept = mask.bool()
        places = mask.cumsum(-1) - 1  # padding on either side leaves the places of a document as they are
    else:
        kept = torch.ones_like(ids, dtype=torch.bool)
        if not isinstance(places, torch.Tensor) or places.shape != ids.shape:
            places = torch.arange(ids.shape[-1], device=ids.device).expand_as(ids)
    if FILLER in inputs:
        kept = kept & ~_fills_up(inputs[FILLER].to(ids.device), kept & (places == 0))
    # Odd 32-bit constants (of xxHash): int64 may wrap around, on every device in the same way.
    mixed = ids.long() * 0x9E3779B1 + places.long() * 0x85EBCA77
    mixed = (mixed ^ (mixed >> 15)) * 0x27D4EB2F
    return (((mixed ^ (mixed >> 17)) & _MASK) * kept).sum() & _MASK


def _fills_up(filler: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Which tokens are of rows that only fill up a batch, by the places where documents begin: both (rows, tokens).

    Of pairs `filler` has a value each; all first answers come before all second ones, or both behind one prompt.
    """
    if filler.shape == begins.shape:
        return filler
    document = begins.flatten().cumsum(0).view_as(begins) - 1
    return filler[document % len(filler)]


def _records(inputs: Any) -> list[Any]:
    return list(inputs) if isinstance(inputs, list | tuple) else [inputs]


def _of_text(record: Any) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True, default=type).encode())


class BatchDigests(Feature):
    """Adds up the digests of micro batches, and hands over the sum with each log.

    Attributes:
        latest: Of the steps up to the last log, over all processes; None before there is one.
    """

    def __init__(self) -> None:
        self.latest: int | None = None
        self._before = 0  # of steps before an interruption that were not logged
        self._sum: torch.Tensor | None = None

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """Count the batch; waits for no device."""
        found = digest(inputs).to(run.args.device, non_blocking=True)
        self._sum = found if self._sum is None else self._sum + found

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """With the loss, which all processes log together."""
        if "loss" in logs and self._sum is not None:
            self.latest = self._total(run)
            self._sum, self._before = None, 0

    def state(self, run: Run) -> dict[str, Any]:
        """What is not logged yet."""
        return {"batches": self._total(run)}

    def load_state(self, run: Run, saved: dict[str, Any]) -> None:
        """Go on with that."""
        self._before = saved.get("batches", 0)

    def _total(self, run: Run) -> int:
        own = torch.zeros((), dtype=torch.int64, device=run.args.device) if self._sum is None else self._sum
        # Processes that share matrices have each counted the same rows; those that share rows their own tokens.
        copies = run.args.tensor_parallel_size
        return (self._before + int(run.accelerator.reduce(own, "sum")) // copies) & _MASK
