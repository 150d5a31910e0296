"""Which values of a YAML file an argument takes, as JSON Schema: as the parser takes them, no more and no less."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from hftune.arguments.names.row import OFF, Row
from hftune.arguments.parser import HftuneParser
from hftune.arguments.ranges import RANGES, Range
from hftune.arguments.special_fields import JOINED

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
ANYTHING: Schema = {"type": ["string", "number", "boolean", "null", "array", "object"]}
# What `int` and `float` of Python read, in the regular expressions of JSON Schema.
_WHOLE = r"^\s*[-+]?\d+(_\d+)*\s*$"
_NUMBER = r"^\s*[-+]?(\d+(_\d+)*\.?(\d+)?|\.\d+)([eE][-+]?\d+)?\s*$"
_YES, _NO = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
_HARMLESS_NO = ("false", "none", "null", "no", "0")


def value_schema(parser: HftuneParser, name: str) -> Schema:
    """What may stand behind an argument of a parser."""
    action = parser.known[name]
    one = _one(action, RANGES.get(name) if name in parser.numbers else None)
    kinds = parser.kinds(name)
    forms = list(one)
    if action.nargs == "+":
        forms.append({"type": "array", "items": any_of(one)})
    elif list in kinds or name in JOINED:
        forms.append({"type": "array", "minItems": int(name in JOINED)})
    if parser.takes_object(name):
        forms.append({"type": "object"})
    # The parser leaves null to the field, and refuses it for numbers that are needed.
    if name not in parser.numbers or type(None) in kinds:
        forms.append(NULL)
    return any_of(forms)


def any_of(forms: Iterable[Schema]) -> Schema:
    """A schema of several; of one itself."""
    listed = list(forms)
    return listed[0] if len(listed) == 1 else {"anyOf": listed}


def _one(action: argparse.Action, limits: Range | None) -> list[Schema]:
    """The forms of one value."""
    kind = getattr(action.type, "__name__", "")
    if action.choices is not None:
        if action.type == str.lower:  # of a merge, which takes them in any case
            return [_text_of(action.choices, blanks=False), *([{"type": "boolean"}] * ("true" in action.choices))]
        return [{"enum": [*_choices(action.choices)]}]
    if kind == "string_to_bool":
        return [{"type": "boolean"}, {"enum": [0, 1]}, _text_of((*_YES, *_NO), blanks=False)]
    if kind == "JSON object":
        return [{"type": "object"}, {"type": "string", "pattern": r"^\s*\{"}]
    if kind in ("int", "float"):
        # TRL wraps the type of what may be none, and reads that word.
        none = [] if action.type in (int, float) else [_none()]
        pattern = _WHOLE if kind == "int" else _NUMBER
        numbers = _numbers("integer" if kind == "int" else "number", limits)
        return [*numbers, {"type": "string", "pattern": pattern}, *none]
    if isinstance(action.type, type) and issubclass(action.type, Enum):
        return [{"enum": [one.value for one in action.type]}]
    # A class of transformers' is made of nothing that a file holds.
    return [{"type": ["string", "number", "boolean"]} if kind in ("str", "") else _none()]


def _none() -> Schema:
    return _text_of(("none", "null"), blanks=False)


def _choices(choices: Iterable[Any]) -> Iterator[Any]:
    """Each choice as YAML may say it: `4` is a number there, and a text on a command line."""
    for choice in choices:
        yield str(choice)
        if isinstance(choice, int | float):
            yield choice
        elif re.fullmatch(r"\d+", str(choice)):
            yield int(choice)


def _numbers(kind: str, limits: Range | None) -> list[Schema]:
    if limits is None:
        return [{"type": kind}]
    also: list[Schema] = [{"enum": [int(value) if value == int(value) else value for value in limits.also]}]
    low = {"exclusiveMinimum" if limits.above else "minimum": _plain(limits.low)}
    high = {"exclusiveMaximum" if limits.below else "maximum": _plain(limits.high)}
    if limits.steps and kind == "number":
        share, whole = {"type": kind, **low, "maximum": 1}, {"type": "integer", "minimum": 1, **high}
        return [share, whole, *(also if limits.also else [])]
    return [{"type": kind, **low, **high}, *(also if limits.also else [])]


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) and abs(value) < 1e15 else value


# --- names of other tools ---


def only_no() -> Schema:
    """What asks for nothing, of a field that hftune fills itself."""
    return any_of([{"enum": [False, 0, None]}, _text_of(_HARMLESS_NO, blanks=False)])


def harmless_schema(row: Row) -> Schema:
    """What a refused name may have behind it: what happens anyway."""
    texts = set(row.harmless)
    numbers = [float(text) for text in texts if re.fullmatch(r"-?\d+(\.\d+)?", text)]
    plain: list[Any] = [None, *(_plain(number) for number in sorted(numbers))]
    if texts & {"false", *OFF}.difference({""}) and "false" in texts:
        plain.append(False)
    if "true" in texts:
        texts |= {"true", "1", "yes", "on", "y", "t"}
        plain += [True, 1]
    return any_of([{"enum": plain}, *([_text_of(sorted(texts))] if texts else [])])


def _text_of(texts: Iterable[str], *, blanks: bool = True) -> Schema:
    """One of these texts, in whichever case: JSON Schema's regular expressions have no switch for that."""
    words = "|".join("".join(map(_either, text)) for text in texts)
    space = r"\s*" if blanks else ""
    return {"type": "string", "pattern": f"^{space}({words}){space}$"}


def _either(letter: str) -> str:
    return f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() and letter.isascii() else re.escape(letter)
