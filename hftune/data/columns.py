"""Columns with names of their own: `--columns prompt=question response=answer` reads them under names that we know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hftune.data.files import Row
from hftune.data.strict_json import from_json
from hftune.errors import ArgumentError, DataError

_FLAG = "--columns"
_FIX = "Write OURS=YOURS, such as prompt=question response=answer; in a YAML file, a dictionary."


def parse_columns(given: str | Mapping[str, Any] | None) -> dict[str, str]:
    """Our name -> the name in the data.

    Args:
        given: `prompt=question response=answer` (also with commas), a JSON object, or a dictionary from a YAML file.

    Raises:
        ArgumentError: Of another form, a name twice, or an empty name.
    """
    if not given:
        return {}
    pairs = list(given.items()) if isinstance(given, Mapping) else _pairs(given.strip())
    for ours, theirs in pairs:
        if not isinstance(ours, str) or not isinstance(theirs, str) or not ours.strip() or not theirs.strip():
            raise ArgumentError(f"{ours!r}: {theirs!r} names no column", place=_FLAG, fix=_FIX)
    mapping = {ours.strip(): theirs.strip() for ours, theirs in pairs}
    # A column twice would be read twice, or one of two would be lost.
    if len(mapping) < len(pairs) or len(set(mapping.values())) < len(pairs):
        raise ArgumentError("a column is named twice", place=_FLAG, fix=_FIX)
    return mapping


def _pairs(text: str) -> list[tuple[Any, Any]]:
    if text.startswith("{"):
        try:
            return list(from_json(text, "the mapping", fix=_FIX).items())
        except DataError as error:
            raise ArgumentError(error.cause, place=_FLAG, fix=error.fix) from error
    parts = text.replace(",", " ").split()
    if not all("=" in part for part in parts):
        raise ArgumentError(f"{text!r} is no list of columns", place=_FLAG, fix=_FIX)
    return [(ours, theirs) for ours, _, theirs in (part.partition("=") for part in parts)]


def apply_columns(row: Row, mapping: Mapping[str, str]) -> Row:
    """The row with its columns renamed; columns that it lacks are left alone.

    Args:
        mapping: From `parse_columns`.

    Raises:
        DataError: A column would take the name of another one that has something in it.
    """
    value = row.value
    # Looked up by what the record has: records of several formats may lie in one file.
    moved = {theirs: ours for ours, theirs in mapping.items() if theirs in value}
    if not moved:
        return row
    renamed = {key: part for key, part in value.items() if key not in moved}
    for theirs, ours in moved.items():
        # Null counts as absent: tables give every record the columns of all.
        if renamed.get(ours) is not None:
            raise DataError(
                f'the record has "{ours}" already, which "{theirs}" is to be read as',
                place=row.origin,
                fix=f'Remove "{ours}" from the data, or from {_FLAG}.',
                kind="column under two names",
            )
        renamed[ours] = value[theirs]
    return Row(renamed, row.file, row.line)


def columns_found(row: Row, mapping: Mapping[str, str]) -> set[str]:
    """Which of the columns that a mapping names (in the data's words) a record has; for `check_columns`."""
    return {theirs for theirs in mapping.values() if theirs in row.value}


def check_columns(mapping: Mapping[str, str], found: Iterable[str]) -> None:
    """Refuse a mapping that names columns which no record has.

    Args:
        found: What `columns_found` gave, over all records.

    Raises:
        ArgumentError: Naming them.
    """
    missing = sorted(set(mapping.values()) - set(found))
    if missing:
        raise ArgumentError(f"no record has the column {', '.join(missing)}", place=_FLAG, fix=_FIX)
