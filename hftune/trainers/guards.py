"""What shows that a reward is being gamed: repetition, and a held-out judge that does not follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


def distinct_ngrams(ids: Sequence[int], n: int = 3) -> float:
    """Share of different n-grams among all of an answer (arXiv:1510.03055): 1 without repetition, 1 for short ones."""
    grams = [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


@dataclass
class Drift:
    """How far the trained reward has run ahead of a judge that is not trained on (arXiv:2210.10760).

    Both are measured in their own standard deviations since the first batch: drift = z(reward) - z(judge). Around 0 the
    judge agrees with what was gained; large, the gain is one that only the trained reward sees.

    Attributes:
        first: Mean and standard deviation of the first batch, of reward and judge.
    """

    first: dict[str, tuple[float, float]] = field(default_factory=dict)

    def measure(self, reward: Sequence[float], judge: Sequence[float]) -> float:
        """Drift of a batch; NaN where either has nothing to say."""
        found = {"reward": _mean_and_std(reward), "judge": _mean_and_std(judge)}
        if any(math.isnan(mean) for mean, _ in found.values()):
            return math.nan
        self.first = self.first or found
        gained = {name: (found[name][0] - mean) / max(std, 1e-6) for name, (mean, std) in self.first.items()}
        return gained["reward"] - gained["judge"]

    def state(self) -> dict[str, dict[str, tuple[float, float]]]:
        """For a checkpoint."""
        return asdict(self)


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, math.nan
    mean = sum(known) / len(known)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in known) / len(known))
