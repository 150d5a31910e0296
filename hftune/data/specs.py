"""What a flag names as data: several sources, how many records of each, in which proportions; and which split of one.

Splits of a folder go by the names of its files: `train-00000-of-00001.parquet`, `validation/a.csv`, `b.test.jsonl`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hftune.errors import ArgumentError, DataError, shown
from hftune.logging import notice

_TAKE = re.compile(r"#([^#\s,/]*)$")
# Of a number of records.
_DIGITS = 12

HELD_OUT_FLAGS = ("--validation_file_dir", "--against")
"""Flags whose sources are read for what is held out of training."""

# The words by which `datasets` finds splits, too; train first, for names such as train_eval.jsonl.
_WORDS = {"train": "train|training", "validation": "validation|valid|val|dev", "test": "test|testing|eval|evaluation"}
_KINDS = {kind: re.compile(rf"(?:^|[-._ 0-9])(?:{words})(?=$|[-._ 0-9])") for kind, words in _WORDS.items()}
# How the Hub and `datasets` name the files of a split, which may be any word (train_sft).
_SHARD = re.compile(r"(?P<split>\w[\w.]*)-\d{5}-of-\d{5}\b")

_NAMED = re.compile(r"(?P<folder>.+)@(?P<split>[\w.-]+)", re.DOTALL)


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

    `path#500` takes 500 records. A text may name several, with commas or blanks between. A path that exists and holds a
    blank or a # is that path; one with a comma, where it is the whole text.

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
    if not weights:
        return [SourceSpec(path, take) for path, take in named]
    shares = parse_weights(weights, [path for path, _ in named], f"--train_dataset_prob ({flag})")
    return [SourceSpec(path, take, share) for (path, take), share in zip(named, shares, strict=True)]


def parse_weights(given: str | list[float], names: Sequence[str], place: str) -> list[float]:
    """One positive number for each source.

    Raises:
        ArgumentError: Another number of weights, or one that is not above 0.
    """
    parts: list[str | float] = list(re.split(r"[,\s]+", given.strip())) if isinstance(given, str) else list(given)
    if len(parts) != len(names):
        raise ArgumentError(
            f"{len(parts)} weights for {len(names)} sources: {shown(', '.join(names))}",
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
    """The parts of a text between commas, and those between blanks of a part that is no path itself."""
    if _exists(text.strip()):
        return [text.strip()]
    parts = [part.strip() for part in text.split(",")]
    return [one for part in parts for one in ([part] if _exists(part) else part.split())]


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


# --- splits -------------------------------------------------------------------------------------------------------


def separate_split(path: str) -> tuple[Path, str | None]:
    """`PATH@SPLIT` to its path, `~` expanded, and its split; a path that exists with an @ in its name is that path."""
    named = _NAMED.fullmatch(path)
    # Not Path.is_dir, which raises for a text that is too long to be a name.
    if named and not os.path.exists(os.path.expanduser(path)) and os.path.isdir(os.path.expanduser(named["folder"])):
        return Path(named["folder"]).expanduser(), named["split"]
    return Path(path).expanduser(), None


def files_of_split(files: list[Path], root: Path, split: str | None, flag: str, *, say: bool = True) -> list[Path]:
    """The files of one split of a folder; all of them where their names tell no splits.

    Args:
        files: All data files below `root`.
        split: As it was named; None for training data, or the held-out ones where `flag` asks for those.
        flag: The flag that gave the folder; errors name it.
        say: Say which split is taken.

    Raises:
        DataError: There is no such split.
    """
    labels = {file: _label(file.relative_to(root)) for file in files}
    names = sorted({label for label in labels.values() if label})
    if split is None:
        return _by_default(labels, root, names, flag, say=say)
    kind = _kind(split)
    wanted = {split} if split in names else {label for label in names if kind and _kind(label) == kind}
    if not wanted:
        there = f"its splits are {', '.join(names)}" if names else "the names of its files tell no splits"
        raise DataError(
            f"{root} has no split {split}: {there}", place=f"{flag} {root}@{split}", fix="Name one of them."
        )
    return [file for file, label in labels.items() if label in wanted]


def _by_default(
    labels: dict[Path, str | None], root: Path, names: Sequence[str], flag: str, *, say: bool
) -> list[Path]:
    """What is not held out, to train on; for flags that name held-out data what is."""
    if flag in HELD_OUT_FLAGS:
        held = held_out_splits(names)
        taken = [file for file, label in labels.items() if label in held]
    else:
        taken = [file for file, label in labels.items() if not label or _kind(label) not in ("validation", "test")]
    if not taken or len(taken) == len(labels):
        return list(labels)
    if say:
        used = sorted({labels[file] or "files without a split's name" for file in taken})
        left = [name for name in names if name not in used]
        offer = "" if flag in HELD_OUT_FLAGS else f"; to evaluate: --validation_file_dir {root}@{left[-1]}"
        notice(
            f"{root}: {', '.join(used)} is read ({len(taken)} of {len(labels)} files), not {', '.join(left)} "
            f"({flag} {root}@{left[-1]} reads that{offer})"
        )
    return taken


def held_out_splits(names: Sequence[str]) -> list[str]:
    """Of the splits of some names those for validation, else those for tests; none where there are neither."""
    by_kind = ([name for name in names if _kind(name) == kind] for kind in ("validation", "test"))
    return next(filter(None, by_kind), [])


def _kind(split: str) -> str | None:
    """train, validation or test, for a split of any name; None where it says nothing of the kind."""
    return next((kind for kind, words in _KINDS.items() if words.search(split.lower())), None)


def _label(path: Path) -> str | None:
    """The split that a file's path within its folder names: the first part that does decides."""
    for part in path.parts:
        shard = _SHARD.match(part)
        if shard:
            return shard["split"]
        if kind := _kind(part):
            # A folder is named as the split is (`datasets` saves train_sft so); of a file only the word counts.
            return part if part != path.name else kind
    return None
