"""Fewer cases than a product of parametrizations has, where what is parametrized does not act on each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def spokes(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The combinations in which at most one axis has another value than its first: the hub, and a spoke a value."""
    values = [list(axis) for axis in axes]
    hub = [axis[0] for axis in values]
    turned = [(*hub[:at], value, *hub[at + 1 :]) for at, axis in enumerate(values) for value in axis[1:]]
    return [tuple(hub), *turned]
