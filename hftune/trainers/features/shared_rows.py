"""Processes that see the same rows are counted once."""

from __future__ import annotations

from typing import Any


class SharedRowsMixin:
    """Put before a `Trainer` subclass: tensor-parallel processes have the same batch, which the Trainer adds up."""

    def _track_num_input_tokens(self: Any, inputs: dict[str, Any]) -> None:
        """As the Trainer's (transformers 5.23; older ones count for themselves)."""
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)  # type: ignore[misc]
        counted = self.state.num_input_tokens_seen - before
        self.state.num_input_tokens_seen = before + counted // self.args.tensor_parallel_size
