"""128 bits of XXH3 over files and values: finds damage and mix-ups; no defence against forgery."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from hftune.errors import shown
from hftune.opening.files import open_file

SEAL = "seal"
"""The name of the digest among sealed values."""

Contents = dict[str, list[Any]]
"""Of each file of a folder, by its path in there: `[size in bytes, digest in hex]`."""

Record = list[Any]
"""Size in bytes, time of change in nanoseconds, 128 bits of XXH3 in hex."""

# Large reads: network drives answer each one with a round trip.
_CHUNK = 1 << 22
# More than a disk needs, and what a network drive rewards.
_THREADS = 8
# Nanoseconds; far above the grain of any file system's time stamps.
_SETTLED = 2 * 10**9
_seen: dict[tuple[int, ...], str] = {}
"""Digests by the state of a file."""
# What hftune writes about a cache is kilobytes; a larger file is none of ours.
_MAX_TEXT = 64 << 20


class Damaged(ValueError):
    """Something is not as it was written; the words say what."""


def digest(file: Path, moved: Callable[[], None] = lambda: None) -> str:
    """128 bits of XXH3 over a file, in hex; reads about as fast as memory does. `moved` is called for each chunk."""
    state = xxhash.xxh3_128()
    with open_file(file) as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
            moved()
    return state.hexdigest()


def digests(files: list[Path], *, once: bool = False, moved: Callable[[], None] = lambda: None) -> list[str]:
    """Of many files; xxhash lets go of the interpreter, so several are read at once.

    Args:
        once: What this process has read before, and the system calls unchanged, is not read again.
        moved: Called while files are read, by several threads.
    """
    read = _digest_once if once else partial(digest, moved=moved)
    if len(files) < 2:
        return [read(file) for file in files]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read, files))


def _digest_once(file: Path) -> str:
    now = file.stat()
    # With the time of the inode, which no program sets: contents may be replaced and their own time set back.
    state = now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
    found = _seen.get(state) or digest(file)
    # As git's index has it: after a change of a moment ago the next one may show in no time stamp.
    if time.time_ns() - now.st_ctime_ns > _SETTLED:
        _seen[state] = found
    return found


# --- records of files, which a quick look trusts where size and time are unchanged ---


def is_record(record: Any) -> bool:
    """Whether a value has the form of a file's record; a manifest may come from anywhere."""
    return isinstance(record, list) and list(map(type, record)) == [int, int, str]


def record_files(files: dict[str, Path], *, once: bool = False) -> dict[str, Record]:
    """Records of files under names; `once` as for `digests`."""
    found = {name: file.stat() for name, file in files.items()}
    hashes = digests(list(files.values()), once=once)
    return {
        name: [stat.st_size, stat.st_mtime_ns, text] for (name, stat), text in zip(found.items(), hashes, strict=True)
    }


def changed_files(folder: Path, recorded: Mapping[str, Record | None], *, whole: bool = False) -> Iterator[str]:
    """What is no longer as recorded, a phrase a file.

    Args:
        folder: What the recorded names are relative to.
        recorded: From `record_files`; null for a file that is not compared.
        whole: Read every byte, also where size and time are unchanged.
    """
    read: dict[Path, str] = {}
    for name, record in recorded.items():
        file = folder / name
        if record is None:
            continue  # whoever changed the file has said so
        # A record may come from a downloaded folder: a name that leads out of it would have other files read.
        if not is_record(record) or Path(name).is_absolute() or ".." in Path(name).parts:
            yield f"{shown(ascii(name))} has no sound record"
            continue
        size, written, text = record
        if not file.is_file():
            yield f"{file} is gone"
            continue
        now = file.stat()
        if now.st_size != size:
            yield f"{file} has {now.st_size} bytes, not {size}"
        # Size and time are looked at first: a cache of 100 GB is opened at every start.
        elif whole or now.st_mtime_ns != written:
            read[file] = text
    for file, now_text in zip(read, digests([*read], once=True), strict=True):
        if now_text != read[file]:
            yield f"{file} has other contents"


# --- folders --------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> Contents:
    """Size and digest of every file of a folder and its sub-folders."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    pairs = zip(files, digests(files), strict=True)
    return {file.relative_to(folder).as_posix(): [file.stat().st_size, found] for file, found in pairs}


def check_contents(folder: Path, recorded: Contents, *, whole: bool = True) -> None:
    """Compare a folder with what `contents` said of it; files that were added are left alone.

    Args:
        whole: Read every byte; else look at sizes only.

    Raises:
        Damaged: The first file that is gone or other than it was.
        OSError: From the system.
    """
    for name, (size, _) in recorded.items():
        file = folder / name
        if not file.is_file():
            raise Damaged(f"{name} is gone")
        if (now := file.stat().st_size) != size:
            raise Damaged(f"{name} has {now} bytes, not {size}")
    if whole:
        found = digests([folder / name for name in recorded])
        for (name, (_, digest_then)), digest_now in zip(recorded.items(), found, strict=True):
            if digest_then != digest_now:
                raise Damaged(f"{name} has other contents than were written")


# --- values ---------------------------------------------------------------------------------------------------------


def sealed(about: dict[str, Any]) -> dict[str, Any]:
    """Plain values with a digest over them, so that a changed one is noticed; see `unsealed`."""
    return {**about, SEAL: _seal(about)}


def read_text(file: Path) -> str:
    """The text of a small file; bytes that are none are replaced, for whoever parses it to stumble over.

    Raises:
        Damaged: It is larger than any that hftune writes.
        OSError: From the system; also for what is no file.
    """
    with open_file(file) as stream:
        content = stream.read(_MAX_TEXT + 1)
    if len(content) > _MAX_TEXT:
        raise Damaged(f"{file.name} has more than {_MAX_TEXT} bytes")
    # Strictness comes with the parser, which names the place.
    return content.decode("utf-8", "replace")


def unsealed(text: str) -> dict[str, Any]:
    """The values of what `sealed` made, written as JSON.

    Raises:
        Damaged: It is no JSON, or its values have changed.
    """
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"no JSON: {error}") from error
    if not isinstance(about, dict) or about.pop(SEAL, None) != _seal(about):
        raise Damaged("its values are not those that were written")
    return about


def _seal(about: dict[str, Any]) -> str:
    # Through JSON and back: what is compared later has been there.
    plain = json.loads(json.dumps(about))
    return xxhash.xxh3_128_hexdigest(json.dumps(plain, sort_keys=True).encode())
