"""The order of prompts, which TRL's trainers repeat for several answers and several uses of them."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Sampler
from trl.trainer.utils import RepeatSampler

from hftune.data.mixture import ReorderedSampler
from hftune.trainers.features.feature import Epoch, Feature
from hftune.trainers.features.record_order import innermost_sampler
from hftune.trainers.features.run import Inputs, Run


class PromptOrder(Feature):
    """A mixture's order inside TRL's pattern of repeats, and the same order after an interruption."""

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

    def before_epoch(self, run: Run, epoch: Epoch) -> None:
        """An epoch's order depends on its number, so a run that resumes sees the same one.

        TRL's sampler (1.16) draws one permutation after the other, and begins again with the first on resuming.
        """
        sampler = innermost_sampler(epoch.loader)
        if isinstance(sampler, RepeatSampler) and sampler.shuffle:
            # Seed + number: unlike seeds for the epochs of a run, the same ones in a resumed run.
            sampler.generator.manual_seed(run.args.seed + epoch.number)

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """A run that resumes stands where it stopped in its batch of answers, which is drawn again."""
        # Only in the first step after resuming: TRL counts from 0 in each process.
        if run._step == 0 and run.state.global_step:
            run._step = run.state.global_step * run.args.gradient_accumulation_steps
