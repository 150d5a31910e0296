"""One module a topic: pure functions from the facts of a run to its problems.

What arguments decide by themselves are rows of `checks.csv`, in the language of `hftune/checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hftune.checks import refused_by
from hftune.errors import ArgumentError, UserError


def refused(topic: str, *owners: Any) -> Iterator[ArgumentError]:
    """A problem for each row of a topic whose condition holds; see `refused_by`."""
    return refused_by(__package__, topic, *owners)


def raised(check: Callable[..., object], *args: object, **named: object) -> list[UserError]:
    """The problem that a call ends with, in a list; an empty one where it ends well."""
    try:
        check(*args, **named)
    except UserError as problem:
        return [problem]
    return []
