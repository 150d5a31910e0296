"""What records hold and no script reads: noted where it is passed over, said once a run, never dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Unread = dict[str, Sequence[Any]]
"""By what was not read: [records, the first of them]."""

# Names of fields come from data, which may have another one in each record.
_MOST = 20
_OTHERS = "further fields and columns"
# Of this process, and of the record it was noted for last: a record counts once however often it has a field.
_noted: dict[str, list[Any]] = {}
_last: dict[str, str] = {}


def note_unread(what: str, origin: str) -> None:
    """Note that a record holds something that is not read."""
    what = _name(what, _noted)
    if _last.get(what) != origin:
        _last[what] = origin
        _noted.setdefault(what, [0, origin])[0] += 1


def _name(what: str, known: Mapping[str, Any]) -> str:
    return what if what in known or len(known) < _MOST else _OTHERS


def take_unread() -> Unread:
    """What was noted since the last call."""
    found: Unread = {what: [*about] for what, about in _noted.items()}
    _noted.clear()
    _last.clear()
    return found


def added(mine: Unread, others: Unread) -> Unread:
    """Both together; the first record is of `mine`."""
    both = {**mine}
    for what, (records, first) in others.items():
        name = _name(what, both)
        known = both.get(name, (0, first))
        both[name] = [known[0] + records, known[1]]
    return both


def describe_unread(found: Unread) -> Iterator[str]:
    """A line for each."""
    for what, (records, first) in found.items():
        yield f"not read: {what}, in {records} record(s) (first: {first})"


def has_text(value: Any) -> bool:
    """Whether a value of JSON holds a text that is not blank."""
    if isinstance(value, str):
        return not (not value or value.isspace())
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, (Mapping, list, tuple)) and any(map(has_text, parts))
