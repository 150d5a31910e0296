"""What the number of an error means, for `hftune explain HF201` and for the pages below docs/errors/."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hftune.error_numbers import LANGUAGES, families
from hftune.errors import ArgumentError
from hftune.tools.explaining.messages import messages

_NUMBER = re.compile(r"HF(\d+)", re.IGNORECASE)
_WORDS = {"en": ("to do: ", "messages:"), "zh": ("处理：", "报错原文：")}
_NEAREST = 3


def is_number(word: str) -> bool:
    """Whether a word is meant as the number of an error."""
    return _NUMBER.fullmatch(word) is not None


def users_language(environment: Mapping[str, str] = os.environ) -> str:
    """ "zh" where the user's programs speak Chinese, else "en"."""
    # As the C library looks for it: the first that is set decides.
    asked = next((environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), "")
    return "zh" if asked.lower().startswith("zh") else "en"


def explain_number(word: str, language: str) -> str:
    """Title, causes, way out and messages of a number, as lines for a terminal.

    Raises:
        ArgumentError: No error has this number; names the nearest.
    """
    number, known = word.upper(), families()
    if number not in known:
        near = sorted(known, key=lambda name: abs(int(name[2:]) - int(number[2:])))[:_NEAREST]
        fix = f"the nearest are {', '.join(near)}; all of them are in docs/errors/index.md"
        raise ArgumentError(f"no error has the number {number}", place="hftune explain", fix=fix)
    text, (to_do, said) = known[number].texts[language], _WORDS[language]
    lines = [f"{number}: {text.title}", f"  {text.means}", f"  {to_do}{text.do}", f"  {said}"]
    return "\n".join([*lines, *(f"    {line}" for line in listed(number))])


def listed(number: str) -> list[str]:
    """The messages of a number, with their ways out where these are known, in lines."""
    found = ((message.cause.splitlines(), message.fix) for message in messages(number))
    return [line for cause, fix in found for line in (*cause, *([f"  to do: {fix}"] if fix else []))]


def of_language(words: list[str]) -> tuple[list[str], str]:
    """The words without `--language zh`, and the language that they ask for, or the user's."""
    if "--language" not in words:
        return words, users_language()
    at = words.index("--language")
    language = words[at + 1] if at + 1 < len(words) else ""
    if language not in LANGUAGES:
        raise ArgumentError(
            "--language takes en or zh", place="hftune explain", fix="hftune explain HF101 --language zh"
        )
    return [*words[:at], *words[at + 2 :]], language
