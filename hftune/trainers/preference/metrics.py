"""Metrics of preference optimisation: sums on the device, read and added up over ranks only when they are logged."""

from __future__ import annotations

from typing import Any

import torch

from hftune.distributed import ranks

Sums = dict[str, tuple[torch.Tensor, torch.Tensor]]


class PairMetrics:
    """Weighted means over all that was added since the last reading, of any number of batches and ranks.

    The mean over pairs is that of all pairs, not of batches' means.
    """

    def __init__(self) -> None:
        self._sums: Sums = {}

    def add(self, name: str, values: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Add values of any shape, with weights of the same shape; without: 1."""
        # float64: a sum over an evaluation in bf16 stops growing after a few hundred values.
        values = values.detach().double()
        weights = torch.ones_like(values) if weights is None else weights.to(values)
        total, weight = (values * weights).sum(), weights.sum()
        if name in self._sums:
            before = self._sums[name]
            total, weight = total + before[0].to(total), weight + before[1].to(weight)
        self._sums[name] = (total, weight)

    def sums(self, accelerator: Any) -> dict[str, tuple[float, float]]:
        """Weighted sum and weight of each over all ranks. Every rank must call it; names may differ between them."""
        # A rank without a bad answer has no metric of it.
        names = sorted({name for found in ranks.gathered_objects(list(self._sums)) for name in found})
        if not names:
            return {}
        zero = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        flat = [part for name in names for part in self._sums.get(name, (zero, zero))]
        totals = accelerator.reduce(torch.stack([part.to(accelerator.device) for part in flat]), "sum").tolist()
        return dict(zip(names, zip(totals[::2], totals[1::2], strict=True), strict=True))

    def restore(self, sums: dict[str, list[float]]) -> None:
        """Begin with sums of an earlier run; those over all ranks are for one of them."""
        self._sums = {
            name: (torch.tensor(total).double(), torch.tensor(weight).double())
            for name, (total, weight) in sums.items()
        }

    def read(self, accelerator: Any) -> dict[str, float]:
        """The means so far, and begin anew; every rank must call it."""
        found = self.sums(accelerator)
        self._sums = {}
        return {name: total / weight for name, (total, weight) in found.items() if weight}
