"""One JSON object from bytes: fast where it is sound, exact about what is wrong where it is not.

orjson does the work. What it would let pass in silence is caught behind it: of two equal keys it keeps the last, and
integers of more than 64 bits become floats. Both show in a count of quotes and floats over the parsed value; only then,
and where orjson refuses, the record is parsed again by the standard library, which can say what is wrong.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import orjson

from hftune.data.readers.base import MAX_VALUES, Row, RowOrError, too_large
from hftune.errors import DataError, shown

MAX_DEPTH = 100
"""Levels of nesting. More is a fault of whatever wrote it, and would overflow the stack of templates and Arrow."""

MALFORMED = "malformed JSON"
NOT_UTF8 = "not UTF-8"
NUL = "NUL byte"
TOO_DEEP = "nested too deep"

# Bytes up to which a record cannot hold values enough to do harm.
_LONG = 1 << 20
_FIX = "Fix or remove this record, or leave it out with --on_bad_record drop; each must be one JSON object."
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


class Malformed(ValueError):
    """Not JSON, or JSON that would lose something; `kind` and `fix` as in DataError."""

    def __init__(self, cause: str, kind: str = MALFORMED, fix: str = "") -> None:
        self.kind, self.fix = kind, fix
        super().__init__(cause)


def parse_object(raw: bytes, file: str, line: int, hint: str = "") -> RowOrError:
    """The JSON object in `raw`, or what is wrong with it.

    Args:
        raw: One record, white space around it allowed.
        hint: Before the advice, for what is malformed or no object.
    """
    # Counted in the bytes: once parsed, the values are in memory already.
    if len(raw) > _LONG and sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
        return too_large(f"{file}:{line}", f"more than {MAX_VALUES} values")
    try:
        value = loads(raw)
    except Malformed as error:
        fix = error.fix or f"{hint}{_FIX}"
        return DataError(str(error), place=f"{file}:{line}", fix=fix, kind=error.kind)
    if type(value) is not dict:
        return _no_object(value, raw, f"{file}:{line}", hint)
    return Row(value, file, line)


def loads(raw: bytes) -> Any:
    """The JSON value in `raw`.

    Raises:
        Malformed: With the cause in words.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _loads_slowly(raw)
    # The rare record that may have lost something is parsed again, by the way that knows every rule.
    return value if _is_faithful(value, raw) else _loads_slowly(raw)


def _is_faithful(value: Any, raw: bytes) -> bool:
    """Whether nothing was lost on the way: every quote belongs to a string that is there, no float is too large.

    A string has two quotes, and those inside it, which are escaped. A key that a later one replaced has left quotes in
    the bytes for which there is no string.
    """
    strings = _strings(value)
    if strings is None:
        return False
    # All at once: a call for each string would take longer than all of orjson.
    inner = "".join(strings).count('"')
    if raw.count(b'"') != 2 * len(strings) + inner:
        return False
    # \u0022 is a quote in the value and none in the bytes, which could hide a lost key.
    return not inner or b"\\u0022" not in raw


def _strings(value: Any) -> list[str] | None:
    """All strings in a value, keys too; None if it is too deep, or holds a float that may have been an integer."""
    strings: list[str] = []
    # Level by level, not by recursion: depth is what is to be limited here.
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for container in level:
            if type(container) is dict:
                strings += container
                container = container.values()
            for part in container:
                kind = type(part)
                if kind is str:
                    strings.append(part)
                elif kind is dict or kind is list:
                    below.append(part)
                # orjson makes a float of an integer beyond 64 bits, which would be another number.
                elif kind is float and abs(part) >= 2**63:
                    return None
        if not below:
            return strings
        level = below
    return None


def _loads_slowly(raw: bytes) -> Any:
    """The same by the standard library, with every rule of ours and the cause in words."""
    # orjson's message for bad UTF-8 does not name the byte.
    text = decode(raw, "")
    if isinstance(text, DataError):
        raise Malformed(text.cause, text.kind, text.fix or "")
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float
        )
    except Malformed:
        raise
    except RecursionError as error:
        raise Malformed(f"malformed JSON: {_TOO_DEEP}", TOO_DEEP) from error
    except ValueError as error:
        raise Malformed(f"malformed JSON: {error}") from error
    # json.loads has a limit of its own, which depends on the stack of whoever calls.
    if is_too_deep(value):
        raise Malformed(f"malformed JSON: {_TOO_DEEP}", TOO_DEEP)
    _refuse_half_surrogates(value, text)
    return value


def decode(raw: bytes, place: str) -> str | DataError:
    """UTF-8 bytes of one record as text without NUL."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return DataError(
            f"not UTF-8: {error.reason}, byte 0x{raw[error.start]:02x}",
            place=place,
            fix="Save the file as UTF-8, for example with `iconv -f GB18030 -t UTF-8` or `iconv -f UTF-16 -t UTF-8`.",
            kind=NOT_UTF8,
        )
    if "\x00" in text:
        fix = "The file is damaged or not UTF-8 text; copy it again."
        return DataError("a NUL byte in the text", place=place, fix=fix, kind=NUL)
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys all differ."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise Malformed(f'the key "{shown(twice)}" is there twice in one object', "duplicate key", "Keep one of them.")
    return value


def _constant(name: str) -> float:
    raise Malformed(f"malformed JSON: {name} is no JSON value", MALFORMED, "Write null or a number.")


def _integer(digits: str) -> int:
    """An integer that fits 64 bits, as Arrow and most other readers need it."""
    # By length first: `int` of a million digits takes seconds, and Python refuses it with words of its own.
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        shown = digits if len(digits) <= 24 else f"{digits[:20]}... ({len(digits)} digits)"
        raise Malformed(f"the integer {shown} has more than 64 bits", "number out of range", "Write it as a string.")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise Malformed(f"the number {digits[:24]} is out of range", "number out of range", "Write it as a string.")
    return number


def _no_object(value: Any, raw: bytes, place: str, hint: str = "") -> DataError:
    start = raw.strip()[:240].decode("utf-8", "replace")
    return DataError(
        f"a record must be a JSON object, found {type(value).__name__}: {shown(start)}",
        place=place,
        fix=f'{hint}Write it as {{"key": ...}}: a .jsonl file holds an object a line, a .json file a list of them.',
        kind="not an object",
    )


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are nested deeper than what follows them by recursion can bear."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for container in level
            if isinstance(container, (dict, list))
            for part in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return False
    return any(isinstance(part, (dict, list)) for part in level)


def _refuse_half_surrogates(value: Any, text: str) -> None:
    # "\ud83d" alone is legal JSON but no text; tokenizers and Arrow fail on it much later and without a place.
    if "\\ud" not in text and "\\uD" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        fix = "Fix the broken \\ud... escape, usually an emoji cut in two."
        raise Malformed(f"half of a surrogate pair ({error.reason})", "half a surrogate pair", fix) from error
