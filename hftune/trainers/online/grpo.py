"""Group relative policy optimisation on TRL's trainer."""

from __future__ import annotations

from typing import Any

import trl

from hftune.trainers.online.base import OnlineTrainer
from hftune.trainers.online.dynamic_sampling import DynamicSampling


class GRPOTrainer(OnlineTrainer, trl.GRPOTrainer):
    """Group relative policy optimisation (arXiv:2402.03300), with `--dynamic_sampling` (DAPO)."""

    _sampling: DynamicSampling | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Overrides TRL's: in training, groups of equal rewards may be replaced; advantages may be scaled."""
        generate = super()._generate_and_score_completions
        output: dict[str, Any] = generate(inputs)
        if self.args.dynamic_sampling and self.model.training:
            # Late: the constructor of TRL's trainer does not generate, and the sampler needs all of it.
            self._sampling = self._sampling or DynamicSampling(self, generate)
            output = self._sampling.fill(output, len(inputs))
        if self.args.normalize_advantages:
            everyone = self.accelerator.gather(output["advantages"])
            # As TRL's RLOO does.
            output["advantages"] = (output["advantages"] - everyone.mean()) / (everyone.std() + 1e-4)
        return output
