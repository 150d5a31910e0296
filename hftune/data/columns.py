"""Columns with names of their own: `--columns prompt=question response=answer` reads them under names that we know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hftune.data.files import Row
from hftune.errors import ArgumentError, DataError, shown

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
    pairs: list[Any]
    try:
        if isinstance(given, Mapping):
            pairs = [*given.items()]
        elif given.lstrip().startswith("{"):
            pairs = json.loads(given, object_pairs_hook=list)
        else:
            pairs = [part.split("=", 1) for part in given.replace(",", " ").split()]
        mapping = {ours.strip(): theirs.strip() for ours, theirs in pairs}
    except (ValueError, AttributeError) as error:
        raise ArgumentError(f"{shown(given)} is no list of columns", place=_FLAG, fix=_FIX) from error
    names = (mapping.keys(), {*mapping.values()})
    # A column twice would be read twice, or one of two would be lost.
    if any(len(each) < len(pairs) or "" in each for each in names):
        raise ArgumentError(f"{shown(given)} names a column twice, or none", place=_FLAG, fix=_FIX)
    return mapping


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
