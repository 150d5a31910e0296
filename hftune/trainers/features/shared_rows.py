"""Processes that see the same rows are counted once."""

from __future__ import annotations

from hftune.trainers.features.feature import Feature, Run


class SharedRows(Feature):
    """Tensor-parallel processes have the same batch, which the Trainer adds up (transformers 5.23)."""

    def tokens_seen(self, run: Run, tokens: int) -> int:
        """Once for each group of processes."""
        return tokens // run.args.tensor_parallel_size
