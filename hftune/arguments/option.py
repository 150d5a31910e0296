"""An argument as a field of a dataclass."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, text: str, **more: Any) -> Any:
    """A field that is an argument of the command line.

    Args:
        default: A list is copied for each object.
        text: What `--help` says of it.
        more: `choices`, and whatever else transformers' parser knows.
    """
    metadata = {"help": text, **more}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)
