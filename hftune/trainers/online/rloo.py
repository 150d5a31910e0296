"""REINFORCE leave-one-out on TRL's trainer."""

from __future__ import annotations

from typing import Any

import trl

from hftune.trainers.features.run import Inputs
from hftune.trainers.online.base import CLIP_RATIOS, OnlineTrainer


class RLOOTrainer(OnlineTrainer, trl.RLOOTrainer):
    """REINFORCE leave-one-out (arXiv:2402.14740)."""

    def stage_loss(self, model: Any, inputs: Inputs, return_outputs: bool, num_items_in_batch: Any) -> Any:
        """TRL's, whose figures then do not depend on micro batches."""
        loss = super().stage_loss(model, inputs, return_outputs, num_items_in_batch)
        # The divergence is logged once for all answers that are drawn together.
        self.join_figures(inputs["completion_mask"], {"entropy"}, CLIP_RATIOS)
        return loss
