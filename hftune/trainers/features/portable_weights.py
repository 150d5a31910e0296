"""Adapters that began with a part of the base, saved as adapters of all of it; and tied matrices, saved once."""

from __future__ import annotations

from pathlib import Path

import torch

from hftune.models.adapters.initialisation import initial_factors, load_plain_lora, rewrite_as_plain
from hftune.models.heads import without_tied
from hftune.models.loading.own_weights import stored_otherwise, tensors_by_parameter
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Run


class PortableWeights(Feature):
    """Weights on disk are those that any other tool reads."""

    def weights_to_save(self, run: Run, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A tied matrix once."""
        # safetensors refuses two names for one memory.
        return without_tied(run.model, weights)

    def after_weights(self, run: Run, folder: Path) -> None:
        """An adapter that began with a part of the base as one of it all."""
        if initial_factors(run.model):
            rewrite_as_plain(run.model, str(folder))

    def load_weights(self, run: Run, checkpoint: str) -> bool:
        """For runs without DeepSpeed; the inverse of saving."""
        if initial_factors(run.model):
            load_plain_lora(run.model, checkpoint)
            return True
        if stored_otherwise(run.model, checkpoint):
            # The Trainer would leave such parameters as they are, without a word.
            run.model.load_state_dict(tensors_by_parameter(run.model, checkpoint))
            return True
        return False

    def load_best(self, run: Run) -> bool:
        """Likewise."""
        # Under DeepSpeed `Checkpoints` has loaded the exported weights before.
        return not run.is_deepspeed_enabled and self.load_weights(run, str(run.state.best_model_checkpoint))
