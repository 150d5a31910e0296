"""A reward that differs from completion to completion, whatever a random model says."""

from __future__ import annotations

from typing import Any


def uneven(completions: list[Any], **_: Any) -> list[float]:
    """The sum of all characters' numbers, modulo 7."""
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [float(sum(map(ord, text)) % 7) for text in texts]
