"""Before the first step, a proof that documents in a row do not see each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hftune.trainers.features.feature import Feature, Inputs, Run


class IsolationProof(Feature):
    """Once a run, and only where documents share rows.

    Args:
        prove: Of a stage, with the wrapped model; raises ArgumentError where documents see each other.
    """

    def __init__(self, prove: Callable[[Any], None]) -> None:
        self._prove = prove
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
        if run.args.flat_batches and not self._proven:
            self._proven = True
            self._prove(model)
