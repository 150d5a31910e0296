"""JSON of bounded size; every fault is one message with the file and the line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NoReturn

from hftune.errors import ManifestError, UserError, shown
from hftune.opening.files import MIB, read_bytes

LIMIT = 64 * MIB
"""Of a config, an index, a manifest, a record."""
LARGE = 256 * MIB
"""Of what grows with a vocabulary or a run: tokenizer.json, trainer_state.json."""

_KINDS = {dict: "an object {...}", list: "a list [...]", str: "a text", int: "a number"}
_FIX = "copy or download it again, or fix it"


def read_json(
    file: str | Path,
    *,
    limit: int = LIMIT,
    kind: type | None = dict,
    error: type[UserError] = ManifestError,
    fix: str = _FIX,
) -> Any:
    """The contents of a JSON file.

    Args:
        file: A regular file.
        limit: Its largest size in bytes.
        kind: Of its outermost value; None: any.
        error: Class of the message.
        fix: What to do about a fault.

    Raises:
        UserError: There is no such file, it is too large or is none, or it is not JSON of that kind.
    """
    content = read_bytes(file, limit=limit, error=error)
    return parse_json(content, str(file), kind=kind, error=error, fix=fix)


def parse_json(
    content: bytes | str,
    place: str,
    *,
    kind: type | None = dict,
    error: type[UserError] = ManifestError,
    fix: str = _FIX,
) -> Any:
    """The value of a JSON text, under the same rules as `read_json`; `place` is its file or flag."""

    def refuse(cause: str, line: int | None, why: BaseException | None = None) -> NoReturn:
        at = f"{place}:{line}" if line and not place.startswith("--") else place
        raise error(f"{place}: {cause}", place=at, fix=fix) from why

    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_object)
        if b"\\ud" in raw.lower():  # half a character, as in "\\ud800", is no text, and would end whatever writes it
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as problem:
        refuse("it is not text in UTF-8", raw.count(b"\n", 0, problem.start) + 1, problem)
    except json.JSONDecodeError as problem:
        refuse(f"it is not valid JSON: {problem.msg} (column {problem.colno})", problem.lineno, problem)
    except RecursionError as problem:
        refuse("it is not usable JSON: brackets are nested too deeply", None, problem)
    except ValueError as problem:  # of the hook, of half a character, or of a number with thousands of digits
        refuse(str(problem), None, problem)
    # Python takes true for a whole number.
    if kind is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        refuse(f"it is {_named(type(value))}, where {_named(kind)} is wanted", 1)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # JSON leaves open which of two values counts; readers differ, and a check could see another than the user. NaN
    # passes: Python has written it into logs of runs.
    found = dict(pairs)
    if len(found) < len(pairs):
        names = sorted(name for name, _ in pairs)
        twice = next(name for name, after in itertools.pairwise(names) if name == after)
        raise ValueError(f"the key {shown(ascii(twice))} is there twice")
    return found


def _named(kind: type) -> str:
    return _KINDS.get(kind, "null" if kind is type(None) else f"a {kind.__name__}")
