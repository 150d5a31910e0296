"""Sums that become metrics: added to on the device, read and added up over ranks only when they are logged."""

from __future__ import annotations

from typing import Any

import torch

from hftune.distributed import ranks


class MetricSums:
    """Weighted means over all that was added since the last reading, of any number of batches and ranks.

    The mean over tokens or pairs is that of all of them, not of batches' means. Adding waits for no device.

    Args:
        device: Where the sums are.
        names: Those that every rank has, so that reading needs no exchange of names; None: they may differ.
    """

    def __init__(self, device: torch.device, names: tuple[str, ...] | None = None) -> None:
        self.device, self.names = device, names
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor, weights: torch.Tensor | None = None) -> None:
        """Add values of any shape, with weights of the same shape; without: 1."""
        # float64: a sum over an evaluation in bf16 stops growing after a few hundred values.
        values = values.detach().double()
        weights = torch.ones_like(values) if weights is None else weights.to(values)
        # A batch of a stream is on the CPU until the Trainer's own step.
        both = torch.stack([(values * weights).sum(), weights.sum()]).to(self.device, non_blocking=True)
        self._sums[name] = self._sums[name] + both if name in self._sums else both

    @property
    def empty(self) -> bool:
        """Whether nothing was added on this rank."""
        return not self._sums

    def totals(self, accelerator: Any) -> dict[str, tuple[float, float]]:
        """Weighted sum and weight of each name over all ranks; every rank must ask."""
        names: list[str] = [*(self.names or ())]
        if self.names is None:  # a rank without a bad answer has no metric of it
            names = sorted({name for found in ranks.gathered_objects(list(self._sums)) for name in found})
        if not names:
            return {}
        zero = torch.zeros(2, dtype=torch.float64, device=self.device)
        both = torch.stack([self._sums.get(name, zero) for name in names])
        added: list[tuple[float, float]] = accelerator.reduce(both, "sum").tolist()
        return {name: (total, weight) for name, (total, weight) in zip(names, added, strict=True)}

    def take(self, accelerator: Any) -> dict[str, tuple[float, float]]:
        """`totals`, and begin anew."""
        found = self.totals(accelerator)
        self._sums = {}
        return found

    def means(self, accelerator: Any) -> dict[str, float]:
        """The means so far, and begin anew; every rank must ask."""
        return {name: total / weight for name, (total, weight) in self.take(accelerator).items() if weight}

    def restore(self, totals: dict[str, Any]) -> None:
        """Begin with `totals` of an earlier run, which had other ranks perhaps: one of them takes what all had."""
        self._sums = {
            name: torch.tensor([total, weight], dtype=torch.float64, device=self.device)
            for name, (total, weight) in totals.items()
            if ranks.is_main()
        }
