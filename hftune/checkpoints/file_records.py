"""Records of what files held when they were read or written, so that a later look can tell whether they still do.

A record of a file is `[size, mtime_ns, xxh3]`. The quick look trusts an unchanged size and time, as make does, and
reads a file only where the time differs; the whole look reads every byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.constants import MANIFEST_NAME
from hftune.digests import Record, changed_files, record_files
from hftune.weight_files import fingerprint, is_model

# Written into the same folder by the Trainer and by reports; they change without the model changing.
_NOT_A_RESULT = {MANIFEST_NAME, "trainer_state.json", "training_args.bin", "samples.json", "answers.json"}
_NOTES = {".md", ".html", ".log", ".jsonl", ".png", ".lock"}
"""Suffixes of what people read, and may edit: a model card, a report, logs (`progress.jsonl.replaced`, too)."""


def result_files(folder: Path) -> dict[str, Path]:
    """Weights, configs and tokenizer of an output folder; not its checkpoints, logs and manifest."""
    return {
        file.name: file
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.startswith(".")
        if file.name not in _NOT_A_RESULT and _NOTES.isdisjoint(file.suffixes)
    }


def record_result(folder: str | Path) -> dict[str, Record]:
    """Records of a folder's result; for its manifest."""
    return record_files(result_files(Path(folder)))


def record_input(path: str) -> dict[str, Any] | None:
    """What a path that an argument names holds: a model's fingerprint, or records of files; None where nothing is."""
    place = Path(path)
    # A model's fingerprint is of samples of its weights: reading all of a large base would take minutes.
    if is_model(place):
        return {"model": fingerprint(place)}
    if place.is_dir() or place.is_file():
        # Training data have been read for the key of their cache.
        return {"files": record_files(_files_of(place), once=True)}
    return None


def changed_input(path: str, recorded: dict[str, Any], *, whole: bool = False) -> Iterator[str]:
    """What is no longer as recorded: changed files, gone ones, new ones, another model."""
    place = Path(path)
    if "model" in recorded:
        if not place.is_dir():
            yield f"{path} is gone"
        elif fingerprint(place) != recorded["model"]:
            yield f"the model in {path} is another one"
        return
    files = recorded["files"]
    if not place.exists():
        yield f"{path} is gone"
        return
    yield from changed_files(place if place.is_dir() else place.parent, files, whole=whole)
    yield from (f"{place / name} is new" for name in sorted(set(_files_of(place)) - set(files)))


def _files_of(place: Path) -> dict[str, Path]:
    if place.is_file():
        return {place.name: place}
    found: dict[str, Path] = {}
    for root, folders, names in os.walk(place):
        # In place, which is how `os.walk` is told where not to go.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                file = Path(root) / name
                if file.is_file():  # a broken link holds nothing, a FIFO waits for somebody to fill it
                    found[str(file.relative_to(place))] = file
    return found
