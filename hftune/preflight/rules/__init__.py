"""One module a topic: pure functions from the facts of a run to its problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hftune.errors import ArgumentError, UserError

Clashes = dict[str, tuple[object, str]]
"""What is typed of other arguments -> whether it is asked for, and why it does not go with the first."""


def clashes(flag: str, others: Clashes, fix: str = "leave one of them out") -> Iterator[ArgumentError]:
    """A problem for each argument that is asked for beside one with which it does not go."""
    for other, (is_asked, why) in others.items():
        if is_asked:
            yield ArgumentError(f"{flag} does not go with {other}: {why}", place=f"{flag}, {other}", fix=fix)


def raised(check: Callable[..., object], *args: object, **named: object) -> list[UserError]:
    """The problem that a call ends with, in a list; an empty one where it ends well."""
    try:
        check(*args, **named)
    except UserError as problem:
        return [problem]
    return []
