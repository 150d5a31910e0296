"""One JSON object from bytes, or what is wrong with it in words; JSON in a string of a record likewise.

Nothing passes in silence: of two equal keys one would be lost, integers of more than 64 bits and NaN fail much later.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from hftune.data.readers.base import MAX_RECORD_BYTES, Row, RowOrError, too_large
from hftune.errors import DataError, shown

MAX_DEPTH = 100
"""Levels of nesting. More is a fault of whatever wrote it, and would overflow the stack of templates and Arrow."""

MALFORMED = "malformed JSON"

BAD_JSON = "malformed JSON in a string"

_FIX = "Fix or remove this record, or leave it out with --on_bad_record drop; each must be one JSON object."


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
    if len(raw) > MAX_RECORD_BYTES:
        return too_large(f"{file}:{line}")
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
    text = decode(raw, "")
    if isinstance(text, DataError):
        raise Malformed(text.cause, text.kind, text.fix or "")
    try:
        value = _DECODER.decode(text)
        # Of a record without brackets enough nothing is counted; the decoder's own limit depends on who calls.
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and is_too_deep(value):
            raise RecursionError
    except Malformed:
        raise
    except RecursionError as error:
        raise Malformed(f"malformed JSON: nested deeper than {MAX_DEPTH} levels", "nested too deep") from error
    except ValueError as error:
        raise Malformed(f"malformed JSON: {error}") from error
    _refuse_half_surrogates(value, text)
    return value


def from_json(value: Any, origin: str, where: str, *, fix: str) -> Any:
    """Decode a string of JSON, as strictly as a record; other values pass through.

    Raises:
        DataError: The string is not JSON, or would lose something.
    """
    if not isinstance(value, str):
        return value
    try:
        # A half of a surrogate pair must reach the check that names it; `encode` alone would raise.
        return loads(value.encode("utf-8", "surrogatepass"))
    except Malformed as error:
        cause = str(error).removeprefix("malformed JSON: ")
        raise DataError(f"{where} is not JSON: {cause}", place=origin, fix=error.fix or fix, kind=BAD_JSON) from error


def decode(raw: bytes, place: str) -> str | DataError:
    """UTF-8 bytes of one record as text without NUL."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return DataError(
            f"not UTF-8: {error.reason}, byte 0x{raw[error.start]:02x}",
            place=place,
            fix="Save the file as UTF-8, for example with `iconv -f GB18030 -t UTF-8` or `iconv -f UTF-16 -t UTF-8`.",
            kind="not UTF-8",
        )
    if "\x00" in text:
        fix = "The file is damaged or not UTF-8 text; copy it again."
        return DataError("a NUL byte in the text", place=place, fix=fix, kind="NUL byte")
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


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float)


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
