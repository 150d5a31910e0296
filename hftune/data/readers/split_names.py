"""Splits of a folder by the names of its files: `train-00000-of-00001.parquet`, `validation/a.csv`, `b.test.jsonl`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hftune.errors import DataError
from hftune.logging import notice

_HELD_OUT_FLAGS = ("--validation_file_dir", "--against")

# The words by which `datasets` finds splits, too; train first, for names such as train_eval.jsonl.
_WORDS = {
    "train": "train|training",
    "validation": "validation|valid|val|dev",
    "test": "test|testing|eval|evaluation",
}
_KINDS = {kind: re.compile(rf"(?:^|[-._ 0-9])(?:{words})(?=$|[-._ 0-9])") for kind, words in _WORDS.items()}
# How the Hub and `datasets` name the files of a split, which may be any word (train_sft).
_SHARD = re.compile(r"(?P<split>\w[\w.]*)-\d{5}-of-\d{5}\b")

_NAMED = re.compile(r"(?P<folder>.+)@(?P<split>[\w.-]+)", re.DOTALL)


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
    kinds = {label: _kind(label) for label in names}
    held = [kind for kind in ("validation", "test") if kind in kinds.values()]
    if flag in _HELD_OUT_FLAGS:
        taken = [file for file, label in labels.items() if label and held and kinds[label] == held[0]]
    else:
        taken = [file for file, label in labels.items() if not label or kinds[label] not in held]
    if not taken or len(taken) == len(labels):
        return list(labels)
    if say:
        used = sorted({labels[file] or "files without a split's name" for file in taken})
        left = [name for name in names if name not in used]
        offer = "" if flag in _HELD_OUT_FLAGS else f"; to evaluate: --validation_file_dir {root}@{left[-1]}"
        notice(
            f"{root}: {', '.join(used)} is read ({len(taken)} of {len(labels)} files), not {', '.join(left)} "
            f"({flag} {root}@{left[-1]} reads that{offer})"
        )
    return taken


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
