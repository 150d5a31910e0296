"""What a test must notice: the gradient of the second process counts half as much again."""

from __future__ import annotations

import os
from typing import Any

from accelerate import Accelerator

from tests.integration.fixed_answers import even_tokens

__all__ = ["even_tokens"]

plain = Accelerator.backward


def heavier(self: Accelerator, loss: Any, **kwargs: Any) -> None:
    """As it was on all processes but the second."""
    plain(self, loss * 1.5 if os.environ.get("RANK") == "1" else loss, **kwargs)


Accelerator.backward = heavier  # type: ignore[method-assign]
