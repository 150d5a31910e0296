"""Which head a model in memory has, in the manifest's word."""

from __future__ import annotations

from typing import Any


def head_of(model: Any) -> str:
    """A key of `constants.TASK_TYPES`: causal_lm, score or steps.

    Args:
        model: The plain model, not an adapter around it.
    """
    if not hasattr(model, "score"):
        return "causal_lm"
    return "steps" if type(model).__name__.endswith("ForTokenClassification") else "score"
