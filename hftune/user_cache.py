"""The folder where hftune keeps what it found out once, for all runs of one user and for nobody else.

What is read back is believed, so nobody else may have written it: folders are made readable by their owner alone, and
one that belongs to somebody else is refused. What is damaged is found by a digest, and made again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from hftune.errors import DataError

_PRIVATE = 0o700
_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Where hftune keeps what it finds out once: the environment's HFTUNE_CACHE, else ~/.cache/hftune."""
    return Path(os.environ.get("HFTUNE_CACHE") or "~/.cache/hftune").expanduser()


def private_folder(root: Path, name: str) -> Path:
    """The folder `name` of a cache, made where it is not there, readable by its owner alone.

    `root` may be a folder that the user made for other things, too, and keeps its rights.

    Raises:
        DataError: One of the two belongs to somebody else, or is a link that somebody else made.
        OSError: It cannot be made.
    """
    folder = root / name
    for each in (root, folder):
        with suppress(FileExistsError):
            each.parent.mkdir(parents=True, exist_ok=True)
            each.mkdir(mode=_PRIVATE)
        _refuse_others(each)
    # The umask or an older version may have made it readable for others: what lies there is tokenised data.
    if stat.S_IMODE(folder.stat().st_mode) & ~_PRIVATE:
        folder.chmod(_PRIVATE)
    return folder


def _refuse_others(folder: Path) -> None:
    for found in (folder.lstat(), folder.stat()):  # the link, and what it leads to
        # What is read back is believed, so a folder in /tmp that somebody else prepared must not be used.
        if found.st_uid != os.geteuid() and found.st_uid != _owner_of_new_files(folder):
            raise DataError(
                f"the cache folder {folder} belongs to another user (number {found.st_uid})",
                place="HFTUNE_CACHE",
                fix="Name a folder of your own in HFTUNE_CACHE, or in --data_cache_dir.",
                kind="foreign cache",
            )


def _owner_of_new_files(folder: Path) -> int:
    """To whom a file belongs that this process writes there: some network drives have one owner for everything."""
    try:
        # NFS with root squash and some FUSE drives give every file the same owner, whoever writes.
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return os.geteuid()


def write_sealed(folder: str, name: str, content: bytes, root: Path | None = None) -> None:
    """Keep a small file, whole or not at all: another process may be writing, or reading, the same one.

    Raises:
        DataError: The cache belongs to somebody else.
        OSError: It cannot be written.
    """
    place = private_folder(root or cache_folder(), folder)
    # In the same folder: a rename is atomic only within a file system.
    descriptor, aside = tempfile.mkstemp(dir=place, prefix=".")
    try:
        with open(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(content).digest() + content)
        os.replace(aside, place / name)
    except BaseException:
        os.unlink(aside)
        raise


def read_sealed(folder: str, name: str, root: Path | None = None) -> bytes | None:
    """What `write_sealed` kept; None where it is not there, or damaged, or not this user's own."""
    base = root or cache_folder()
    try:
        # Before the folder is touched: reading a cache that is not there must not make one.
        if not (base / folder / name).is_file():
            return None
        whole = (private_folder(base, folder) / name).read_bytes()
    except (OSError, DataError):
        return None
    # A write that a full disk cut short leaves a file whose digest does not fit.
    kept, content = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == kept else None
