"""Several sources behind one flag: which, how many records of each, in which proportions. Parsed and checked only."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass

from hftune.data.readers.split_names import separate_split
from hftune.errors import ArgumentError, shown

_TAKE = re.compile(r"#([^#\s,/]*)$")
# Of a number of records.
_DIGITS = 12
_SEPARATOR = re.compile(r"([,\s]+)")


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A file, folder or Hub name; how many of its records are taken (None: all); its weight (None: as it is)."""

    path: str
    take: int | None = None
    weight: float | None = None


def parse_sources(
    given: str | list[str], weights: str | list[float] | None = None, *, flag: str = "--train_file_dir"
) -> list[SourceSpec]:
    """The sources that a flag names.

    `path#500` takes 500 records. A text may name several, with commas or blanks between; a path that exists and holds
    a comma, a blank or a # is that path.

    Args:
        given: A text, or a list of texts that name one source each.
        weights: One for each source, above 0, as `0.8,0.2`; they need not sum to 1.
        flag: Named in errors.

    Raises:
        ArgumentError: No source, a number after # that is none, or weights that do not fit.
    """
    texts = [text for text in given if text.strip()] if isinstance(given, list) else _separate(given)
    if not texts:
        raise ArgumentError("no data was named", place=flag, fix="Give a file, a folder or a Hub name.")
    named = [_take(text.strip(), flag) for text in texts]
    shares = parse_weights(weights, len(named), flag)
    return [SourceSpec(path, take, share) for (path, take), share in zip(named, shares, strict=True)]


def parse_weights(given: str | list[float] | None, count: int, flag: str) -> list[float | None]:
    """One positive number for each of `count` sources; None for each where none are given.

    Raises:
        ArgumentError: Another number of weights, or one that is not above 0.
    """
    if given is None or given == "":
        return [None] * count
    place = f"--train_dataset_prob ({flag})"
    parts: list[str | float] = list(re.split(r"[,\s]+", given.strip())) if isinstance(given, str) else list(given)
    if len(parts) != count:
        raise ArgumentError(
            f"{len(parts)} weights for {count} sources",
            place=place,
            fix="Give one weight for each source, in their order.",
        )
    return [_weight(part, place) for part in parts]


def _weight(part: str | float, place: str) -> float:
    fix = "Give numbers above 0, such as 0.8,0.2; leave a source out instead of giving it 0."
    try:
        weight = float(part)
    except ValueError as error:
        raise ArgumentError(f"{part!r} is no weight", place=place, fix=fix) from error
    # float() reads nan and inf, too.
    if not math.isfinite(weight) or weight <= 0:
        raise ArgumentError(f"{part} is no weight", place=place, fix=fix)
    return weight


def _separate(text: str) -> list[str]:
    """The parts of a text between commas and blanks; of those that exist as a path together, the most are one part."""
    parts = _SEPARATOR.split(text.strip())
    # From the left, the longest first: `my data,more` is one path if there is one of that name.
    found, start = [], 0
    while start < len(parts):
        joined = ["".join(parts[start:end]) for end in range(len(parts), start, -1)]
        # Names and separators alternate, so an odd number of them begins and ends with a name.
        whole = next((part for part in joined[len(joined) % 2 == 0 :: 2] if _exists(part)), parts[start])
        found.append(whole)
        start += 2 * len(_SEPARATOR.findall(whole)) + 2
    return [part for part in found if part]


def _exists(text: str) -> bool:
    """Whether a text is a path, as it is or before its #."""
    return any(path_exists(part) for part in {text, _TAKE.sub("", text)} if part)


def path_exists(text: str) -> bool:
    """Whether there is a file or folder of this name, or of FOLDER@SPLIT; a text too long to be one is none."""
    # Path.exists would raise for a long list of sources: more than 255 letters are no name.
    return os.path.exists(separate_split(text)[0])


def _take(text: str, flag: str) -> tuple[str, int | None]:
    """`path#500` to ("path", 500)."""
    match = _TAKE.search(text)
    # A file may be called notes#3.txt.
    if match is None or path_exists(text):
        return text, None
    number = match.group(1)
    # `isdecimal`, since `isdigit` takes ² as well; the length before `int`, which is slow for a million digits.
    if not number.isdecimal() or len(number) > _DIGITS or int(number) == 0 or match.start() == 0:
        fix = "Write PATH#500 to take 500 records of a source."
        cause = f"{shown(text)} does not exist, and {shown(number)!r} after # is not a number of records"
        raise ArgumentError(cause, place=flag, fix=fix)
    return text[: match.start()], int(number)
