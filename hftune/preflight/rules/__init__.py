"""One module a topic: pure functions from the facts of a run to its problems."""

from __future__ import annotations

from collections.abc import Callable

from hftune.errors import UserError


def raised(check: Callable[..., object], *args: object, **named: object) -> list[UserError]:
    """The problem that a call ends with, in a list; an empty one where it ends well."""
    try:
        check(*args, **named)
    except UserError as problem:
        return [problem]
    return []
