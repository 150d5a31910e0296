"""The table of what arguments decide by themselves: `checks.csv`, in the language of `hftune/checks.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hftune.checks import refused_by
from hftune.errors import ArgumentError


def refused(topic: str, *owners: Any) -> Iterator[ArgumentError]:
    """A problem for each row of a topic whose condition holds; see `refused_by`."""
    return refused_by(__package__, topic, *owners)
