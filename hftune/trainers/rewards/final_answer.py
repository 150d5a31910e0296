r"""What an answer comes to: in <answer>, in \boxed{}, behind ####, behind "the answer is", else its last figure."""

from __future__ import annotations

import re

_THOUGHTS = "</think>"
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOX = re.compile(r"\\(?:f?box|boxed)\s*\{")
_HASHES = re.compile(r"####\s*(.+)")
_SAID = re.compile(
    r"(?:\b(?:option|choice)\s+(?=\(?[A-J]\b)"
    r"|\b(?:answer|option|choice)\b(?:[^\n:.=]{0,60}?\bis\b|\W{0,6}?[:=])\W{0,2}?:?"
    r"|答案(?:应?[是为]|】|\s*[:\uff1a=])\s*[:\uff1a]?|选(?:项|择)?\s*[:\uff1a]?(?=\s*[A-J]))"
    r"\s*\**\s*(.+?)(?=\**[.!]?\**\s*(?:\n|$)|\**[.!]\**\s|\s+is\s+(?:correct|right|the)\b|[。\uff1b])",
    re.IGNORECASE,
)
# As in Markdown, so that of prices ($5 and $3) nothing is a formula.
_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|(?<![\\$])\$(?:(?=\s)([^$\n]+?\s)|(?!\s)([^$\n]+?)(?<![\\\s]))\$(?![\d$])|\\\((.+?)\\\)|\\\[(.+?)\\\]",
    re.DOTALL,
)
_FIGURE = re.compile(
    r"(?<![a-zA-Z\d_.{^\\/,])[-+]?[$€£¥]?\d[\d,]*(?<!,)(?:\.\d+)?(?:\s*/\s*\d+)?"
    r"(?:\s*\\?%|\s?[a-zA-Z°]{1,3}\b(?:[/^][a-z\d]+)?)?(?![a-zA-Z\d_}^])"
)
_BEFORE, _AFTER = re.compile(r"[-+*/^×÷·<>]\s*$"), re.compile(r"\s*[-+*/^×÷·<>=]\s*(?:[\d\\({]|[a-z]\b)")


def candidates(text: str) -> list[str]:
    """What an answer may come to: what is marked, from mark to mark inwards; else all of it, and its last figure."""
    inner, found = _inner(text.rpartition(_THOUGHTS)[2]), None
    # <answer>The answer is \boxed{4}</answer>: each mark narrows what the one before has left.
    while inner is not None:
        inner, found = _inner(inner[0]), inner
    whole, sentence = (text.rpartition(_THOUGHTS)[2], True) if found is None else found
    figure = _figure_of(whole, leads=found is not None) if sentence else None
    return [whole] if figure is None else [whole, figure]


def marked(text: str) -> str:
    """What is marked as the final answer; where nothing is, all of it."""
    while (inner := _inner(text)) is not None:
        text = inner[0]
    return text


def _inner(text: str) -> tuple[str, bool] | None:
    """What stands in or behind the last mark, and whether more than the answer may stand there."""
    if tagged := _TAGGED.findall(text):
        return str(tagged[-1]), False
    if (boxed := _boxed(text)) is not None:
        return boxed, False
    if behind := _HASHES.findall(text):
        return str(behind[-1]), False
    said = _SAID.findall(text)
    return (str(said[-1]), True) if said else None


def _boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} or \fbox{...}, braces inside it counted."""
    starts = list(_BOX.finditer(text))
    if not starts:
        return None
    depth, first = 1, starts[-1].end()
    for place in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0) * (text[place - 1] != "\\")
        if depth == 0:
            return text[first:place]
    return None


def _figure_of(text: str, *, leads: bool) -> str | None:
    """The last formula or figure, or one that leads the text; None where it is part of an expression."""
    for pattern in (_FORMULA, _FIGURE):
        if found := list(pattern.finditer(text)):
            one = found[0] if leads and found[0].start() == 0 and not _AFTER.match(text, found[0].end()) else found[-1]
            part = _BEFORE.search(text[: one.start()]) or _AFTER.match(text, one.end())
            return None if part else _content(one)
    return None


def _content(found: re.Match[str]) -> str:
    return next((group for group in found.groups() if group), found[0])
