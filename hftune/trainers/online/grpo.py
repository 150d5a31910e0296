"""GRPO and RLOO on TRL's trainers."""

from __future__ import annotations

from typing import Any

import trl

from hftune.trainers.features.run import Inputs
from hftune.trainers.online.base import CLIP_RATIOS, OnlineTrainer
from hftune.trainers.online.dynamic_sampling import DynamicSampling


class GRPOTrainer(OnlineTrainer, trl.GRPOTrainer):
    """Group relative policy optimisation (arXiv:2402.03300), with `--dynamic_sampling` (DAPO)."""

    _sampling: DynamicSampling | None = None

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """TRL's, whose figures then do not depend on micro batches."""
        loss = super().stage_loss(model, inputs, return_outputs, num_items_in_batch)
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        ratios = {*CLIP_RATIOS, "cispo_clip_ratio"}
        # Of a ratio of whole answers there is one an answer.
        by_token = self.importance_sampling_level == "token"
        of_tokens = {"entropy", "kl"} | (ratios if by_token else set())
        self.join_figures(mask, of_tokens, {"vespo/phi_seq_mean"} | (set() if by_token else ratios))
        return loss

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Overrides TRL's: in training, groups of equal rewards may be replaced; advantages may be scaled."""
        output = self._answers(inputs)
        if self.args.dynamic_sampling and self.model.training:
            # Late: the constructor of TRL's trainer does not generate, and the sampler needs all of it.
            self._sampling = self._sampling or DynamicSampling(self, self._answers)
            output = self._sampling.fill(output, len(inputs))
        scored = output.pop("scored")
        if self.args.normalize_advantages:
            everyone = self.accelerator.gather(output["advantages"])[self.accelerator.gather(scored)]
            # As TRL's RLOO does; of one answer there is no deviation.
            scaled = (output["advantages"] - everyone.mean()) / (everyone.std().nan_to_num() + 1e-4)
            output["advantages"] = scaled.masked_fill(~scored, 0.0)
            self._show_advantages(self.accelerator.gather(output["advantages"]).tolist())
        return output

    def _answers(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch, and which of its answers (rows,) have a reward."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        return output | {"scored": ~self.own_scores(len(inputs)).isnan()}

    def _show_advantages(self, scaled: list[float]) -> None:
        """Put those into the log that are trained on, in place of TRL's."""
        shown = self._logs["advantages"]
        for _ in scaled:
            shown.pop()
        shown.extend(scaled)


class RLOOTrainer(OnlineTrainer, trl.RLOOTrainer):
    """REINFORCE leave-one-out (arXiv:2402.14740)."""

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """TRL's, whose figures then do not depend on micro batches."""
        loss = super().stage_loss(model, inputs, return_outputs, num_items_in_batch)
        # The divergence is logged once for all answers that are drawn together.
        self.join_figures(inputs["completion_mask"], {"entropy"}, CLIP_RATIOS)
        return loss
