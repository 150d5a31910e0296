"""Reward functions that tests name on the command line."""

from __future__ import annotations

from typing import Any


def count_digits(completions: list[Any], **_: Any) -> list[float]:
    """One point for each digit in a completion (a list of messages, or a string)."""
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [float(sum(character.isdigit() for character in text)) for text in texts]
