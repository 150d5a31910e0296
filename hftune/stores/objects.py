"""Files of object stores (s3://, gs://, hf://, ...), copied into the cache: everything else reads local files.

A copy lies under a name made of the URL and of what the store says of each file (size, checksum, time), so that it is
made once, is never changed, and is not taken for another state of the same URL.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
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
    # The last part of the URL: names of files decide how they are read, those of folders what a model is called.
    name = PurePosixPath(root).name or "files"
    home = private_folder(cache_folder(), "stores") / _key(url, files)
    lock = FileLock(home.with_name(f".{home.name}.lock"), mode=0o600)
    # Every process of a machine comes here; the first one copies, the others wait and find it.
    with disk_errors(home, "HFTUNE_CACHE"), lock:
        if not home.is_dir():
            _copy(store, files, home, name, url, flag)
    return home / name


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
        files.append(StoredFile(path, name, int(about.get("size") or 0), json.dumps(state, sort_keys=True)))
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
    for file in files:
        # A key of a store is any text: `../../.ssh/authorized_keys` is one.
        parts = file.name.split("/")
        if file.name and ({"", ".", ".."} & {*parts} or visible(file.name) != file.name or "\\" in file.name):
            cause = f"{where} holds a file whose name is no path: {shown(file.name)}"
            raise ArgumentError(cause, place=flag, fix="rename it there")
    size, free = sum(file.size for file in files), free_bytes(cache_folder())
    if size > free:
        raise ArgumentError(
            f"{where} has {size_text(size)}; {cache_folder()} has room for {size_text(free)}",
            place=flag,
            fix="name a folder with more room in the variable HFTUNE_CACHE",
        )


def _key(url: str, files: list[StoredFile]) -> str:
    """A name for a URL and the state of its files."""
    about = [url, *((file.name, file.size, file.state) for file in files)]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:_KEY_LETTERS]


def _copy(store: Any, files: list[StoredFile], home: Path, name: str, url: str, flag: str) -> None:
    """Copy files, as `name` in a folder that becomes `home` when the last one is there."""
    size = sum(file.size for file in files)
    get_logger().info("copying %s: %d file(s), %s, to %s", redact(url), len(files), size_text(size), home)
    # What an interrupted copy has finished is kept: models have many gigabytes.
    work = home.with_name(f".{home.name}.partial")
    for file in files:
        target = work / name / file.name  # of a single file the name is ""
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(store, file, target, url, flag)
    os.replace(work, home)
    flush(home.parent)


def _copy_file(store: Any, file: StoredFile, target: Path, url: str, flag: str) -> None:
    """Copy one file.

    Raises:
        DataError: It has another size than the store has said: it was replaced meanwhile.
    """
    aside = target.with_name(f"{target.name[:120]}.partial")
    with _errors_of_store(url, flag), store.open(file.path, "rb") as source, open(aside, "wb") as stream:
        left = file.size
        # Never more than was announced: the room on the disk was measured by it.
        while left >= 0 and (chunk := source.read(min(_CHUNK, left + 1))):
            left -= len(chunk)
            stream.write(chunk)
    if left:
        raise DataError(
            f"{redact(url)} changed while it was copied ({shown(file.name or file.path)})",
            place=flag,
            fix="Let nothing write there during a run, and start it again.",
            kind="file changed",
        )
    flush(aside)
    os.replace(aside, target)


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
