"""Files of object stores (s3://, gs://, hf://, ...), copied into the cache by fsspec; all else reads local files.

A copy lies under a name made of the URL and of what the store says of each file (size, checksum, time), so that it is
made once, is never changed, and is not taken for another state of the same URL.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock

from hftune.errors import ArgumentError, DataError, UserError, shown
from hftune.logging import get_logger
from hftune.publishing.disk import disk_errors, flush
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

# What stores say of the state of a file, by any of their names: size, checksum, generation, time.
_STATE = (
    *("size", "ETag", "etag", "md5Hash", "generation", "blob_id"),
    *("LastModified", "last_modified", "updated", "created"),
)
_FIX = "look whether the URL is right, the store can be reached and your credentials for it are set"


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
        DataError: It changed meanwhile.
    """
    store, root = _store_of(url, flag)
    with _errors_of_store(url, flag):
        listed = dict(sorted(store.find(root, detail=True).items()))
    # Of a single file the name below the URL is "".
    names = {path: path.removeprefix(root).lstrip("/") for path in listed}
    wanted = {*chosen([*names.values()])}
    files = {names[path]: {**about, "name": path} for path, about in listed.items() if names[path] in wanted}
    _check([*files], url, flag)
    state = {name: {word: str(about[word]) for word in _STATE if about.get(word)} for name, about in files.items()}
    key = hashlib.sha256(json.dumps([url, state]).encode()).hexdigest()[:32]
    home = private_folder(cache_folder(), "stores") / key
    # Names of files decide how they are read, those of folders what a model is called.
    last = PurePosixPath(root).name or "files"
    # Every process of a machine comes here; the first one copies, the others wait and find it.
    with disk_errors(home, "HFTUNE_CACHE"), FileLock(home.with_name(f".{key}.lock"), mode=0o600):
        if not home.is_dir():
            get_logger().info("copying %s: %d file(s), to %s", redact(url), len(files), home)
            work = home.with_name(f".{key}.partial")
            shutil.rmtree(work, ignore_errors=True)
            for name, about in files.items():
                target = work / last / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with _errors_of_store(url, flag):
                    store.get_file(about["name"], str(target))
                if target.stat().st_size != about.get("size"):
                    cause = f"{redact(url)} changed while it was copied ({shown(name)})"
                    raise DataError(cause, place=flag, fix="Let nothing write there during a run, and start it again.")
                flush(target)
            os.replace(work, home)
            flush(home.parent)
    return home / last


def upload(names: list[str], folder: Path, url: str, flag: str) -> None:
    """Write files of a folder into one of a store.

    Raises:
        ArgumentError: The store does not take them.
    """
    store, root = _store_of(url, flag)
    with _errors_of_store(url, flag, "written", f"; the result is in {folder}"):
        # The config last: without it nothing takes the folder for a model.
        for name in sorted(names, key=lambda name: (name == "config.json", name)):
            store.put_file(str(folder / name), f"{root}/{name}")


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
def _errors_of_store(url: str, flag: str, done: str = "read", more: str = "") -> Iterator[None]:
    """Turn what a store or its package raises in the block into one message: its errors are of no one family."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        words = shown(redact(str(error)), 200) or type(error).__name__
        raise ArgumentError(f"{redact(url)} cannot be {done}: {words}", place=flag, fix=_FIX + more) from error


def _check(names: list[str], url: str, flag: str) -> None:
    """Refuse keys of a store, which are any text (`../../.ssh/authorized_keys`), that are no paths below a folder."""
    if not names:
        raise ArgumentError(f"there is nothing at {redact(url)} to be read", place=flag, fix=_FIX)
    folders = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents if name} - {"."}
    for name in names:
        odd = visible(name) != name or re.search(r"[\\\n\t]", name) or {"", ".", ".."} & {*name.split("/")}
        if name in folders or (odd and (name or len(names) > 1)):
            cause = f"{redact(url)} holds a file whose name is no path: {shown(name)}"
            raise ArgumentError(cause, place=flag, fix="rename it there")
