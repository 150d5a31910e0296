"""One JSON object from bytes, or what is wrong with it in words; JSON in a string of a record likewise.

Nothing passes in silence: of two equal keys one would be lost, NaN fails much later.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hftune.data.files import MAX_RECORD_BYTES, too_large
from hftune.errors import DataError, shown

MAX_DEPTH = 100
"""Levels of nesting. More is a fault of whatever wrote it, and would overflow the stack of templates and Arrow."""

MALFORMED = "malformed JSON"


_FIX = (
    "Fix or remove this record, or leave it out with --on_bad_record drop; each must be one JSON object. "
    "If the file is one array, let its name end in .json."
)


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Args:
        raw: One record, white space around it allowed.

    Raises:
        DataError: Saying what is wrong with it.
    """
    if len(raw) > MAX_RECORD_BYTES:
        raise too_large()
    try:
        value = loads(raw)
    except DataError as error:
        raise DataError(error.cause, fix=error.fix or _FIX, kind=error.kind) from error
    if type(value) is not dict:
        start = raw.strip()[:240].decode("utf-8", "replace")
        raise DataError(
            f"a record must be a JSON object, found {type(value).__name__}: {shown(start)}",
            fix='Write it as {"key": ...}: a .jsonl file holds an object a line, a .json file a list of them.',
            kind="not an object",
        )
    return value


def loads(raw: bytes) -> Any:
    """The JSON value in `raw`.

    Raises:
        DataError: It is none, or would lose something; without a fix where only the cause is known.
    """
    text = decode(raw)
    try:
        value = _DECODER.decode(text)
        # Of a record without brackets enough nothing is counted; the decoder's own limit depends on who calls.
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and is_too_deep(value):
            raise RecursionError
    except RecursionError as error:
        raise _malformed(f"nested deeper than {MAX_DEPTH} levels", "nested too deep") from error
    except ValueError as error:
        raise _malformed(str(error)) from error
    _refuse_half_surrogates(value, text)
    return value


def _malformed(cause: str, kind: str = MALFORMED, fix: str | None = None) -> DataError:
    return DataError(f"malformed JSON: {cause}", kind=kind, fix=fix)


def from_json(value: Any, where: str, *, fix: str) -> Any:
    """Decode a string of JSON, as strictly as a record; other values pass through.

    Raises:
        DataError: The string is not JSON, or would lose something.
    """
    if not isinstance(value, str):
        return value
    try:
        # A half of a surrogate pair must reach the check that names it; `encode` alone would raise.
        return loads(value.encode("utf-8", "surrogatepass"))
    except DataError as error:
        cause = f"{where} is not JSON: {error.cause.removeprefix('malformed JSON: ')}"
        raise DataError(cause, fix=error.fix or fix, kind="malformed JSON in a string") from error


def decode(raw: bytes) -> str:
    """UTF-8 bytes of one record as text without NUL.

    Raises:
        DataError: They are something else.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"not UTF-8: {error.reason}, byte 0x{raw[error.start]:02x}",
            fix="Save the file as UTF-8, for example with `iconv -f GB18030 -t UTF-8` or `iconv -f UTF-16 -t UTF-8`.",
            kind="not UTF-8",
        ) from error
    if "\x00" in text:
        fix = "The file is damaged or not UTF-8 text; copy it again."
        raise DataError("a NUL byte in the text", fix=fix, kind="NUL byte")
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys all differ."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        cause = f'the key "{shown(twice)}" is there twice in one object'
        raise DataError(cause, fix="Keep one of them.", kind="duplicate key")
    return value


def _constant(name: str) -> float:
    raise _malformed(f"{name} is no JSON value", fix="Write null or a number.")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


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
        cause = f"half of a surrogate pair ({error.reason})"
        raise DataError(cause, fix=fix, kind="half a surrogate pair") from error
