"""The files of a folder itself: links that lead out of it, pipes and devices are refused.

Folders of the Hub's cache consist of links into `blobs` of the same repository; those are what they promise to be.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from hftune.errors import ManifestError
from hftune.opening.files import open_regular

_READ = {".json", ".safetensors", ".bin", ".pt", ".pth", ".jinja", ".txt", ".model", ".py", ".gguf", ".tiktoken"}
"""Suffixes of what a model, an adapter or a checkpoint is read from."""
# Folders within a result that are read as well: named chat templates, and the critic of PPO.
_NESTED = ("additional_chat_templates", "critic")
# Names of huggingface_hub's cache: models--OWNER--NAME/blobs/DIGEST.
_HUB = re.compile(r"(models|datasets|spaces)--")
_BLOB = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?$")  # git's or the contents' own digest


def unsafe_entries(folder: str | Path) -> Iterator[ManifestError]:
    """Problems of the files that a folder is read from: links that lead out of it, broken ones, pipes, devices."""
    place = Path(folder)
    for file in _entries(place) if place.is_dir() else ():
        problem = unsafe_entry(file, place)
        if problem is not None:
            yield problem


def unsafe_entry(file: Path, folder: str | Path) -> ManifestError | None:
    """Why a file does not belong to a folder; None where it does, or is not there."""
    try:
        kind = os.lstat(file).st_mode
    except OSError:
        return None
    # First where it leads: what lies there is not even looked at.
    if stat.S_ISLNK(kind) and not _is_inside(file, Path(folder)):
        return _refusal(file, f"is a link that leads out of {folder}", "copy the file itself there (cp -L)")
    try:
        kind = os.stat(file).st_mode
    except OSError:
        return _refusal(file, "is a broken link", "copy the file itself there, or remove the link")
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        return _refusal(file, "is a pipe, a socket or a device, no file", "put the file itself there, or remove it")
    return None


def copy_file(file: Path, target: Path, *, within: str | Path) -> None:
    """Copy a file of the folder `within`; refuses a link that leads out of it.

    Raises:
        ManifestError: It is such a link, or no file.
    """
    problem = unsafe_entry(file, within)
    if problem is not None:
        raise problem
    # Opened and looked at once more: the name may have become a pipe since the check above.
    with open_regular(file) as source, open(target, "wb") as stream:
        shutil.copyfileobj(source, stream, 1 << 20)


def copy_folder(folder: Path, target: Path, *, within: str | Path) -> None:
    """Copy the files that lie in a folder itself, each as `copy_file` does."""
    problem = unsafe_entry(folder, within)
    if problem is not None:
        raise problem
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir()):
        if not file.is_dir():
            copy_file(file, target / file.name, within=within)


def _entries(folder: Path) -> Iterator[Path]:
    """The entries that are read, broken links and pipes included."""
    for entry in sorted(folder.iterdir()):
        if entry.name in _NESTED:
            yield entry
            # A link to a folder is judged itself: nothing behind it is looked at.
            yield from sorted(entry.iterdir()) if entry.is_dir() and not entry.is_symlink() else ()
        elif entry.suffix in _READ:
            yield entry


def _is_inside(file: Path, folder: Path) -> bool:
    """Whether a link ends in the folder, or in the blobs of a repository in the Hub's cache."""
    # Both without links: the folder itself may be reached through one.
    ends, home = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
    if home in ends.parents:
        return True
    return ends.parent.name == "blobs" and bool(_HUB.match(ends.parent.parent.name) and _BLOB.match(ends.name))


def _refusal(file: Path, cause: str, fix: str) -> ManifestError:
    return ManifestError(f"{file} {cause}", place=str(file), fix=fix)
