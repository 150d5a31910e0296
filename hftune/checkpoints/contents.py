"""What files held when they were read or written, so that a later look can tell whether they still do.

A record of a file is `[size, mtime_ns, xxh3]`. The quick look trusts an unchanged size and time, as make does, and
reads a file only where the time differs; the whole look reads every byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import xxhash

from hftune.constants import MANIFEST_NAME
from hftune.weight_files import fingerprint

Record = list[Any]
"""Size in bytes, time of change in nanoseconds, 128 bits of XXH3 in hex."""

_CHUNK = 1 << 22
_THREADS = 8
_NOT_A_RESULT = {MANIFEST_NAME, "trainer_state.json", "training_args.bin", "samples.json", "answers.json"}
_NOTES = {".md", ".html", ".log", ".jsonl", ".png", ".lock"}
"""Suffixes of what people read, and may edit: a model card, a report, logs."""


def digest(file: Path) -> str:
    """128 bits of XXH3 over a file, in hex; reads about as fast as memory does."""
    state = xxhash.xxh3_128()
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()


def digests(files: list[Path]) -> list[str]:
    """Of many files; xxhash lets go of the interpreter, so several are read at once."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(digest, files))


def record_files(files: dict[str, Path]) -> dict[str, Record]:
    """Records of files under names."""
    found = {name: file.stat() for name, file in files.items()}
    hashes = digests(list(files.values()))
    return {
        name: [stat.st_size, stat.st_mtime_ns, text] for (name, stat), text in zip(found.items(), hashes, strict=True)
    }


def changed_files(folder: Path, recorded: dict[str, Record], *, whole: bool = False) -> Iterator[str]:
    """What is no longer as recorded, a phrase a file.

    Args:
        folder: What the recorded names are relative to.
        whole: Read every byte, also where size and time are unchanged.
    """
    for name, (size, time, text) in recorded.items():
        file = folder / name
        if not file.is_file():
            yield f"{file} is gone"
            continue
        now = file.stat()
        if now.st_size != size:
            yield f"{file} has {now.st_size} bytes, not {size}"
        elif (whole or now.st_mtime_ns != time) and digest(file) != text:
            yield f"{file} has other contents"


# --- results: what a finished folder holds for the next stage ---


def result_files(folder: Path) -> dict[str, Path]:
    """Weights, configs and tokenizer of an output folder; not its checkpoints, logs and manifest."""
    return {
        file.name: file
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.startswith(".")
        if file.name not in _NOT_A_RESULT and file.suffix not in _NOTES
    }


def record_result(folder: str | Path) -> dict[str, Record]:
    """Records of a folder's result; for its manifest."""
    return record_files(result_files(Path(folder)))


# --- inputs: files and folders that arguments name ---


def record_input(path: str) -> dict[str, Any] | None:
    """What a path holds: the fingerprint of a model's folder, or records of the files; None where it is no path."""
    place = Path(path)
    if is_model(place):
        return {"model": fingerprint(place)}
    if place.is_dir() or place.is_file():
        return {"files": record_files(_files_of(place))}
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


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model or an adapter."""
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def _files_of(place: Path) -> dict[str, Path]:
    if place.is_file():
        return {place.name: place}
    found: dict[str, Path] = {}
    for root, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                file = Path(root) / name
                found[str(file.relative_to(place))] = file
    return found
