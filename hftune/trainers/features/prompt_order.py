"""The order of prompts, which TRL's trainers repeat for several answers and several uses of them."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Sampler

from hftune.data.mixture import ReorderedSampler
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class PromptOrder(Feature):
    """A mixture's order inside TRL's pattern of repeats."""

    def train_sampler(self, run: Run, dataset: Any) -> Sampler[Any] | None:
        """The pattern over the places 0, 1, 2, ... of an epoch; each is then looked up in the mixture's order."""
        drawn: Any = run.record_order.train_sampler(run, dataset)
        if drawn is None:
            return None
        # Places and not records: the pattern repeats places, whichever records are drawn for them.
        pattern = run.upstream_sampler(range(len(drawn)))
        # The mixture is in random order already.
        pattern.shuffle = False
        return ReorderedSampler(pattern, drawn)
