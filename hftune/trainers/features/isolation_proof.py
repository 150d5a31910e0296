"""Before the first step, a proof that documents in a row do not see each other."""

from __future__ import annotations

from typing import Any

from hftune.trainers.features.feature import Feature
from hftune.trainers.features.run import Inputs, Run


class IsolationProof(Feature):
    """Once a run, where documents share rows."""

    def __init__(self) -> None:
        self._proven = False

    def before_step(self, run: Run, model: Any, inputs: Inputs) -> None:
        """Training may begin."""
        self.prove_once(run, model)

    def before_prediction(self, run: Run, model: Any, inputs: Inputs) -> Inputs:
        """Evaluation may begin before training does."""
        self.prove_once(run, model)
        return inputs

    def prove_once(self, run: Run, model: Any) -> None:
        """All ranks come here at the same batch."""
        if not self._proven:
            # Before the proof, whose forward passes may come here again.
            self._proven = True
            run.prove_isolation(model)
