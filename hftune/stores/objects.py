"""Files of object stores (s3://, gs://, hf://, ...), copied into the cache: everything else reads local files.

A copy lies under a name made of the URL and of what the store says of each file (size, checksum, time), so that it is
made once, is never changed, and is not taken for another state of the same URL.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock

from hftune.errors import ArgumentError, DataError, UserError, shown
from hftune.logging import get_logger
from hftune.opening.files import size_text
from hftune.publishing.disk import disk_errors, flush, free_bytes
from hftune.secrets import redact
from hftune.user_cache import cache_folder, private_folder
from hftune.visible import visible

PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "az": "adlfs",
    "abfs": "adlfs",
    "oss": "ossfs",
}
"""The stores that are read, by what their URLs begin with, and the package that fsspec needs for each."""

MOST_FILES = 100_000
_CHUNK = 1 << 22
_KEY_LETTERS = 32
# Of Linux, in bytes; the cache's own path comes before that of a file.
_LONGEST_NAME, _LONGEST_PATH = 255, 3000
# What stores say of the state of a file, by any of their names: checksum, generation, time.
_STATE = ("ETag", "etag", "md5Hash", "generation", "blob_id", "LastModified", "last_modified", "updated", "created")
_FIX = "look whether the URL is right, the store can be reached and your credentials for it are set"
# Whose errors are a store's: they are no family of their own.
_OF_STORES = {"aiobotocore", "aiohttp", "adlfs", "azure", "botocore", "fsspec", "gcsfs", "google", "httpx"}
_OF_STORES |= {"huggingface_hub", "oss2", "ossfs", "requests", "s3fs"}


@dataclass(frozen=True)
class StoredFile:
    """A file in a store: its path there, its name below the URL, its size, and what else tells its state."""

    path: str
    name: str
    size: int
    state: str


def is_url(text: str) -> bool:
    """Whether a text is the URL of something in a store that is read."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme.lower() in PACKAGES


def fetch(url: str, flag: str, chosen: Callable[[list[str]], list[str]] = lambda names: names) -> Path:
    """The local copy of a file or folder in a store, made where there is none of its present state.

    Args:
        flag: The flag that gave the URL; errors name it.
        chosen: Of the names of a folder's files those that are wanted.

    Raises:
        ArgumentError: It cannot be reached, holds nothing, or does not fit on the disk.
    """
    store, root = _store_of(url, flag)
    with _errors_of_store(url, flag):
        files = _listed(store, root)
    wanted = {*chosen([file.name for file in files])}
    files = [file for file in files if file.name in wanted]
    _check(files, url, flag)
    home = private_folder(cache_folder(), "stores") / _key(url, files)
    lock = FileLock(home.with_name(f".{home.name}.lock"), mode=0o600)
    # Every process of a machine comes here; the first one copies, the others wait and find it.
    with disk_errors(home, "HFTUNE_CACHE"), lock:
        if not home.is_dir():
            _copy(store, root, files, home, url, flag)
    return home / _last(root)


def _store_of(url: str, flag: str) -> tuple[Any, str]:
    """fsspec's object for a store, and the path in it.

    Raises:
        ArgumentError: Its package is not installed, or the URL is none.
    """
    package = PACKAGES[url.partition("://")[0].lower()]
    if importlib.util.find_spec(package) is None:
        raise ArgumentError(
            f"{shown(redact(url))} is read with the package {package}, which is not installed",
            place=flag,
            fix=f"pip install {package}; or copy it here by other means, and give the path",
        )
    import fsspec

    with _errors_of_store(url, flag):
        store, root = fsspec.core.url_to_fs(url)
        return store, str(root).rstrip("/")


@contextmanager
def _errors_of_store(url: str, flag: str) -> Iterator[None]:
    """Turn what a store or its package raises in the block into one message."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _OF_STORES and not isinstance(error, OSError | ValueError):
            raise
        words = shown(redact(str(error)), 200) or type(error).__name__
        raise ArgumentError(f"{redact(url)} cannot be read: {words}", place=flag, fix=_FIX) from error


def _listed(store: Any, root: str) -> list[StoredFile]:
    """The files below a path, sorted by name; of a file it alone, under the name ""."""
    found = store.find(root, detail=True)
    files = []
    for path, about in sorted(found.items()):
        state = {key: str(about[key]) for key in _STATE if about.get(key)}
        name = path.removeprefix(root).lstrip("/")
        size = about.get("size") or 0
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"it says {shown(size, 20)} as the size of {shown(name)}")
        files.append(StoredFile(path, name, size, json.dumps(state, sort_keys=True)))
    return files


def _check(files: list[StoredFile], url: str, flag: str) -> None:
    """Refuse a list that cannot be copied.

    Raises:
        ArgumentError: Nothing there, too many files, a name that leads elsewhere, or too little room.
    """
    where = redact(url)
    if not files:
        raise ArgumentError(f"there is nothing at {where} to be read", place=flag, fix=_FIX)
    if len(files) > MOST_FILES:
        cause = f"{where} holds {len(files):,} files, more than {MOST_FILES:,}"
        raise ArgumentError(cause, place=flag, fix="name a folder below it, or join the files to fewer ones")
    names = [file.name for file in files]
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents if name} - {"."}
    for name in names:
        if not _is_path(name) or name in folders or (not name and len(files) > 1):
            cause = f"{where} holds a file whose name is no path: {shown(name)}"
            raise ArgumentError(cause, place=flag, fix="rename it there")
    size, free = sum(file.size for file in files), free_bytes(cache_folder())
    if size > free:
        raise ArgumentError(
            f"{where} has {size_text(size)}; {cache_folder()} has room for {size_text(free)}",
            place=flag,
            fix="name a folder with more room in the variable HFTUNE_CACHE",
        )


def _is_path(name: str) -> bool:
    """Whether a key of a store, which is any text (`../../.ssh/authorized_keys`), names a file below a folder."""
    if visible(name) != name or re.search(r"[\\\n\t]", name):
        return False
    short = len(name.encode()) <= _LONGEST_PATH and all(len(part.encode()) <= _LONGEST_NAME for part in name.split("/"))
    return not name or (short and not {"", ".", ".."} & {*name.split("/")})


def _key(url: str, files: list[StoredFile]) -> str:
    """A name for a URL and the state of its files."""
    about = [url, *((file.name, file.size, file.state) for file in files)]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:_KEY_LETTERS]


def _last(root: str) -> str:
    """The last part of a URL: names of files decide how they are read, those of folders what a model is called."""
    return PurePosixPath(root).name or "files"


def _copy(store: Any, root: str, files: list[StoredFile], home: Path, url: str, flag: str) -> None:
    """Copy files into a folder that becomes `home` when the last one is there.

    Raises:
        DataError: One was replaced meanwhile.
    """
    size = sum(file.size for file in files)
    get_logger().info("copying %s: %d file(s), %s, to %s", redact(url), len(files), size_text(size), home)
    # What an interrupted copy has finished is kept: models have many gigabytes.
    work = home.with_name(f".{home.name}.partial")
    for file in files:
        target = work / _last(root) / file.name  # of a single file the name is ""
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            # Outside of the folder, in which any name may be that of a file.
            _copy_file(store, file, target, home.with_name(f".{home.name}.file"), url, flag)
    with _errors_of_store(url, flag):
        store.invalidate_cache()
        known = {*_listed(store, root)}
    # By their states: a file may have been replaced by another one of its size.
    for file in files:
        if file not in known:
            raise _changed(file, url, flag)
    os.replace(work, home)
    flush(home.parent)


def _copy_file(store: Any, file: StoredFile, target: Path, aside: Path, url: str, flag: str) -> None:
    """Copy one file.

    Raises:
        DataError: It has another size than the store has said: it was replaced meanwhile.
    """
    with _errors_of_store(url, flag), store.open(file.path, "rb") as source, open(aside, "wb") as stream:
        left = file.size
        # Never more than was announced: the room on the disk was measured by it.
        while left >= 0 and (chunk := source.read(min(_CHUNK, left + 1))):
            left -= len(chunk)
            stream.write(chunk)
    if left:
        raise _changed(file, url, flag)
    flush(aside)
    os.replace(aside, target)


def _changed(file: StoredFile, url: str, flag: str) -> DataError:
    return DataError(
        f"{redact(url)} changed while it was copied ({shown(file.name or file.path)})",
        place=flag,
        fix="Let nothing write there during a run, and start it again.",
        kind="file changed",
    )


def upload(contents: dict[str, str | bytes], folder: Path, url: str, flag: str) -> None:
    """Write files into a folder of a store.

    Args:
        contents: By name a path, or a file's bytes.
        folder: Which of them the manifest is of; for the message.

    Raises:
        ArgumentError: The store does not take them.
    """
    store, root = _store_of(url, flag)
    try:
        with _errors_of_store(url, flag):
            # The config last: without it nothing takes the folder for a model.
            for name in sorted(contents, key=lambda name: (name == "config.json", name)):
                content = contents[name]
                if isinstance(content, bytes):
                    store.pipe_file(f"{root}/{name}", content)
                else:
                    store.put_file(content, f"{root}/{name}")
    except ArgumentError as error:
        cause = error.cause.replace("cannot be read", "cannot be written")
        fix = f"{_FIX}; the result is in {folder}"
        raise ArgumentError(cause, place=flag, fix=fix) from error
