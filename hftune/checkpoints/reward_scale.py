"""Mean and standard deviation of a reward model's scores, kept alongside it and never folded into its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hftune.checkpoints.manifest import read_manifest
from hftune.constants import REWARD_SCALE_FIELD as FIELD
from hftune.errors import ManifestError
from hftune.opening.model_files import read_checked


@dataclass(frozen=True)
class RewardScale:
    """Mean and standard deviation of raw scores.

    Args:
        mean: Of all scores, chosen and rejected.
        std: Their standard deviation (of the population), above 0.
        scores: How many there were.
        measured_on: "held-out records" or "training records".
    """

    mean: float
    std: float
    scores: int
    measured_on: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which gives floats back bit for bit."""
        return asdict(self)

    def normalise(self, score: float) -> float:
        """(score - mean) / std"""
        return (score - self.mean) / self.std


def scale_of(scores: Iterable[float], measured_on: str) -> RewardScale | None:
    """The scale of these scores; None where they are all the same, or not finite."""
    # In float64: a sum of many float32 scores loses digits, and depends on their order.
    values = np.array(list(scores), dtype=np.float64)
    if not len(values):
        return None
    mean, std = float(values.mean()), float(values.std())
    return RewardScale(mean, std, len(values), measured_on) if math.isfinite(std) and std > 0 else None


def read_scale(folder: str | Path) -> RewardScale | None:
    """The scale stored with a reward model, adapter or whole; None where there is none.

    An adapter's is in its manifest; the config.json of its base may hold one of an earlier reward model.
    """
    adapter = (Path(folder) / "adapter_config.json").is_file()
    config = Path(folder) / "config.json"
    stored = (read_manifest(folder) or {}).get(FIELD)
    if not stored and not adapter and config.is_file():
        stored = read_checked(config).get(FIELD)
    try:
        return RewardScale(**stored) if stored else None
    except TypeError as error:  # fields of another name
        raise ManifestError(
            f"the reward scale stored in {folder} is none: {error}", place=f"{folder}: {FIELD}", fix="take it out there"
        ) from error
