"""What `hftune teach` has stored, in the place of teachers."""

from __future__ import annotations

import torch

from hftune.constants import TEACHER_ROWS
from hftune.data.teacher_targets import StoredTargets
from hftune.models.kernels.divergences import TopTargets
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run
from hftune.trainers.features.token_loss import next_values


class StoredTeacher(Feature):
    """Targets of a folder, read as each batch wants them; of the size of a batch, whatever the folder's size."""

    def __init__(self, folder: str) -> None:
        self.stored = StoredTargets(folder)

    def targets(self, run: Run, inputs: Inputs, at: torch.Tensor) -> TopTargets:
        """What was said of the tokens whose predictions are at places `at` (tokens,) of the flattened batch.

        Args:
            inputs: With teacher_rows, the places of the targets of each token.
        """
        rows = next_values(inputs, TEACHER_ROWS, -1).reshape(-1)[at]
        ids, log_probs = self.stored.take(rows)
        return TopTargets(ids.to(at.device), log_probs.to(at.device), self.stored.about["vocabulary"])
