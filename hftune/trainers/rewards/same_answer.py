"""Whether two final answers are the same: as text, number, list, set or interval, and by math-verify as mathematics."""

from __future__ import annotations

import importlib.util
import re
import threading
from typing import Any

from hftune.trainers.rewards.answer_forms import Quantity, quantity, spelled

_SECONDS = 5
"""Of one comparison by math-verify at most."""

_FIGURES = r"(?:[^a-zA-Z=,;]|\\[a-z]+)"
_ASSIGNED = re.compile(
    rf"([a-zA-Z]\w?(?:_\{{?\w+\}}?)?(?:\([a-z]\))?|{_FIGURES}+)\s*(?:={_FIGURES}*)*(?:=|\\in(?![a-z]))\s*([^=]+)"
)
_OPTION = re.compile(r"\(?([A-Ja-j])(?:\s*\)\s*|[.:]\s+|[.:,](?=[\u4e00-\u9fff\\$]))\S.*", re.DOTALL)
_CHOICES = re.compile("A?B?C?D?E?F?G?H?I?J?")
_BETWEEN = re.compile(r",(?!\d{3}(?!\d))|,(?=\s)|;|\s(?:and|or)\s|(?<=[\da-zA-Z)}])\s*[和或与]\s*(?=[-\da-zA-Z(\\])")
_SET = r"\{\}"
_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")
_COMMANDS = re.compile(r"\\(?:begin|end)\{\w+\}|\\[a-zA-Z]+|\b(?:sin|cos|tan|cot|sec|csc|log|ln|exp|and|or|mod)\b")
# math-verify leaves out pm of a time and the base of a number.
_WORDS = re.compile(r"[^\W\d_]{3}|[\u4e00-\u9fff]|\b[ap]m\b|\d_\{?\d", re.IGNORECASE)
_DEEPEST = 30
"""Brackets within brackets: with more of them math-verify's parser passes over the end of its time."""
# A power or factorial that would be worked out to the last digit, and stop a run for hours.
_HUGE = re.compile(r"\^\s*\{?\s*-?\d{5}|\d\s*\}?\s*\^\s*\{?\s*\d+\s*\^|\d{4}\s*!|!\s*!")


def same_answer(right: str, given: str) -> bool:
    """Whether two final answers are certainly the same or, where math-verify is installed, the same as mathematics.

    A unit, `x =` and the text of an option may be missing on one side; of lists and sets the order is free, of tuples
    and intervals not. 50 % is both a half and 50.
    """
    return _same(spelled(right), spelled(given))


def has_math_verify() -> bool:
    """Whether expressions are compared as mathematics."""
    return importlib.util.find_spec("math_verify") is not None


def _same(right: str, given: str) -> bool:
    right, given = _sides(right, given)
    ours, theirs = quantity(right), quantity(given)
    if ours and theirs and not _fit(ours, theirs):
        return False
    if ours and theirs and (ours.value == theirs.value or ours.share == theirs.share):
        return True
    # Not of two numbers: without its space 5 1/2 reads as 51/2.
    if not (ours and theirs) and given and _plain(right) == _plain(given):
        return True
    lists = _same_lists(right, given)
    return _mathematically(right, given) if lists is None else lists


def _sides(right: str, given: str) -> tuple[str, str]:
    """Without what one of two answers alone has before it: `x =`, or a letter's option behind it."""
    names = [_ASSIGNED.fullmatch(text) for text in (right, given)]
    if names[0] is None or names[1] is None or names[0][1] == names[1][1]:
        right, given = (text if name is None else name[2] for text, name in zip((right, given), names, strict=True))
    for one, other in ((right, given), (given, right)):
        if len(one) == 1 and (option := _OPTION.fullmatch(other)):
            return one, option[1]
    return right, given


def _fit(right: Quantity, given: Quantity) -> bool:
    """Whether two amounts may be the same: 5 cm are not 5 m, nor are 5 % of something."""
    return right.unit == given.unit or not right.unit or not given.unit


def _plain(text: str) -> str:
    return _SPACE.sub("", text).casefold()


def _same_lists(right: str, given: str) -> bool | None:
    """Whether both are lists of the same, in order where they have brackets that keep one; None: not known."""
    (kind, ours), (other, theirs) = _parts(right), _parts(given)
    loose = {kind, other} <= {"", _SET}
    # math-verify takes (1, 2) for an open interval, and that for the set {1, 2}.
    if kind != other and not loose and min(len(ours), len(theirs)) > 1:
        return False
    if len(ours) != len(theirs) or not (kind or other or len(ours) > 1):
        return None
    if not loose:
        return (kind == other and all(map(_same, ours, theirs))) or None
    left = list(theirs)
    for one in ours:
        place = next((place for place, each in enumerate(left) if _same(one, each)), None)
        if place is None:
            return None
        del left[place]
    return True


def _parts(text: str) -> tuple[str, list[str]]:
    """The brackets around all of a text, and what commas divide in them."""
    if _CHOICES.fullmatch(text):
        return "", list(text)
    inner = re.fullmatch(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", text, re.DOTALL)
    if inner is None or any(depth < 0 for depth in _depths(inner[2])):
        return "", _divided(text)
    return inner[1] + inner[3], _divided(inner[2])


def _depths(text: str) -> list[int]:
    depths, depth = [], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        depths.append(depth)
    return depths


def _divided(text: str) -> list[str]:
    depths, parts, start = _depths(text), [], 0
    for found in _BETWEEN.finditer(text):
        if depths[found.start()] == 0:
            parts.append(text[start : found.start()].strip())
            start = found.end()
    return [part for part in [*parts, text[start:].strip()] if part]


def _is_text(text: str) -> bool:
    """Whether letters are words: as mathematics, Paris is a product of five factors and the same as pairs."""
    return _WORDS.search(_COMMANDS.sub(" ", text)) is not None or re.fullmatch(r"[^\W\d_]{2}", text) is not None


def _is_expression(text: str) -> bool:
    """Whether a text is mathematics, and no more of it than is worked out soon."""
    return bool(text) and not _is_text(text) and not _HUGE.search(text) and max(_depths(text)) <= _DEEPEST


def _mathematically(right: str, given: str) -> bool:
    if not has_math_verify() or not all(map(_is_expression, (right, given))):
        return False
    from math_verify import parse, verify

    # It keeps time by signals, which only the main thread may use.
    seconds: Any = _SECONDS if threading.current_thread() is threading.main_thread() else None
    gold, target = (parse(f"${text}$", parsing_timeout=seconds) for text in (right, given))
    return bool(gold and target and verify(gold, target, allow_set_relation_comp=True, timeout_seconds=seconds))
