"""Tokenised data on disk, under a fingerprint of all that went into it.

An entry is a folder that appears whole, by renaming, or not at all: `save_to_disk`'s files, and `contents.json` with
their digests, which are compared each time it is opened. Nothing is flushed to the disk: what a power cut has damaged
is found by them, and made again. One process of a machine makes an entry while the others wait for a file lock: no
collective is under way that could time out.
"""

from __future__ import annotations

import functools
import glob
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash
from datasets import Dataset, disable_caching, load_from_disk
from filelock import FileLock, Timeout
from transformers import PreTrainedTokenizerBase

import hftune
from hftune.data.counts import Counts
from hftune.data.files import UNREADABLE_FIX
from hftune.digests import Contents, Damaged, check_contents, contents, digests, read_text, sealed, unsealed
from hftune.distributed import ranks
from hftune.errors import DataError
from hftune.logging import get_logger
from hftune.template_arguments import arguments_of
from hftune.user_cache import cache_folder, private_folder

STATE = "state.json"
"""The file by which such a folder is known."""

_INFO = "dataset_info.json"
# What `datasets` raises for a folder that somebody has changed: it trusts what it reads.
_WRONG = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException)


def open_folder(folder: Path, *, validate: bool = False) -> Dataset:
    """The data set of a folder, memory-mapped.

    Args:
        validate: Look at every offset, too. Arrow trusts its files: a wrong one would end the process, not raise.

    Raises:
        Damaged: It is not what `Dataset.save_to_disk` writes.
    """
    try:
        files = _data_files(folder)
        if validate:
            for file in files:
                _validate(file)
        # Else what is made of it later (`flatten_indices`, `add_column`) stays next to it for ever, as cache-*.arrow.
        disable_caching()
        dataset = load_from_disk(str(folder))
    except Damaged:
        raise
    except _WRONG as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    # `load_from_disk` also opens dictionaries of splits.
    if not isinstance(dataset, Dataset):
        raise Damaged(f"it holds the splits {', '.join(dataset)}")
    return dataset


def _data_files(folder: Path) -> list[Path]:
    """The files that the folder's state lists, all of them in the folder."""
    if not (folder / STATE).exists():
        raise Damaged(f"it has no {STATE}")
    if (folder / _INFO).exists():
        read_text(folder / _INFO)  # `datasets` reads it whatever it is
    state: Any = json.loads(read_text(folder / STATE))
    names = [entry["filename"] for entry in state["_data_files"]]
    for name in names:
        # A name such as ../../x would have `datasets` open any file of this user.
        if Path(name).name != name:
            raise Damaged(f"{STATE} names the file {name!r}, which is not in the folder")
        # Opening a FIFO would wait for ever.
        if not (folder / name).is_file():
            raise Damaged(f"{name} is gone, or no file")
    return [folder / name for name in names]


def _validate(file: Path) -> None:
    with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as batches:
        for number, batch in enumerate(batches):
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as error:
                raise Damaged(f"{file.name}, batch {number}: {error}") from error


# --- token ids --------------------------------------------------------------------------------------------------------


def is_int_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists of integers."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_list and pa.types.is_integer(kind.value_type)


_CONTENTS = "contents.json"


def fingerprint(files: list[Path], tokenizer: PreTrainedTokenizerBase, **settings: Any) -> str:
    """128 bits in hex over the files' contents (not their names), the tokenizer, the settings and this package's code.

    XXH3, which reads as fast as memory does: a key to find things by, not a defence against forgery.

    Raises:
        DataError: A file cannot be read.
    """
    about = {
        "hftune": hftune.__version__,
        "code": _code_state(),
        "tokenizer": tokenizer_state(tokenizer),
        "settings": settings,
    }
    # `default=str`: settings may hold paths and other plain values.
    digest = xxhash.xxh3_128(json.dumps(about, sort_keys=True, default=str).encode())
    try:
        for file, contents_ in zip(files, digests(files, once=True), strict=True):
            # The suffix decides how a file is read.
            digest.update(f"\0{''.join(file.suffixes).lower()} {contents_}\0".encode())
    except OSError as error:
        cause = f"cannot read the file: {error.strerror or error}"
        place = str(error.filename or ", ".join(map(str, files[:3])))
        raise DataError(cause, place=place, fix=UNREADABLE_FIX, kind="unreadable file") from error
    return digest.hexdigest()


@functools.cache
def _code_state() -> str:
    """The source of this package: tokenising that has changed must not find what it made before."""
    digest = xxhash.xxh3_128()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def tokenizer_state(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """All of a tokenizer that decides which ids a text gets."""
    if tokenizer.is_fast:
        # Before the first added token stand truncation and padding: set by the last call that asked for them, and
        # overridden by the next one. Parsing it all would take as long as tokenising a thousand records.
        whole = tokenizer.backend_tokenizer.to_str()
        state: Any = whole[whole.index('"added_tokens":') :]
    else:
        state = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    about = {"backend": state, "special": special, "chat_template": tokenizer.chat_template}
    arguments = arguments_of(tokenizer)
    return about | ({"template_arguments": arguments} if arguments else {})


def tokenizer_key(tokenizer: PreTrainedTokenizerBase) -> str:
    """128 bits in hex of `tokenizer_state`."""
    state = json.dumps(tokenizer_state(tokenizer), sort_keys=True, default=str)
    return xxhash.xxh3_128(state.encode()).hexdigest()


def cached(
    key: str, write: Callable[[Path], Counts], cache_dir: str | None = None, overwrite: bool = False
) -> tuple[Dataset, Counts]:
    """The dataset and counts of `key`, memory-mapped from the cache, written first where absent or incomplete.

    Every process of a run calls this; one of each machine (or of all that share the cache folder) writes.

    Args:
        key: From `fingerprint`.
        write: Fills an empty folder as `Dataset.save_to_disk` would.
        cache_dir: Else the environment's HFTUNE_CACHE, else ~/.cache/hftune.
        overwrite: Write even if there is an entry.

    Raises:
        DataError: The cache folder cannot be written.
    """
    root = Path(cache_dir).expanduser() if cache_dir else cache_folder()
    entry = root / "datasets" / key
    try:
        # Training data may be confidential: readable for their owner only, as are the files below.
        private_folder(root, "datasets")
        with _one_writer(entry.with_name(f".{key}.lock")) as first:
            # Who is not first comes after one that was, which has just read or written every byte.
            found = None if overwrite and first else _load(entry, whole=first)
            if found is not None:
                get_logger(__name__).info(f"tokenised data from the cache: {entry}")
                return found
            _save(entry, write)
            return _opened(entry, whole=False)
    except (OSError, Damaged) as error:
        raise DataError(
            f"cannot write the cache: {error}", place=str(entry), fix="Give a folder with room in HFTUNE_CACHE."
        ) from error


@contextmanager
def _one_writer(path: Path) -> Iterator[bool]:
    """Let one process in at a time, the first of a machine before its others; says whether this is such a first one."""
    lock = FileLock(path, mode=0o600)
    first = ranks.local_rank() == 0
    if first:
        # Without waiting: the first process of another machine may hold it, and waits for this one at the barrier.
        with suppress(Timeout):
            lock.acquire(timeout=0)
    ranks.barrier()
    if not lock.is_locked:
        lock.acquire()
    try:
        yield first
    finally:
        lock.release()


def _load(entry: Path, *, whole: bool) -> tuple[Dataset, Counts] | None:
    """A complete entry, or None for an absent or damaged one."""
    if not entry.is_dir():
        return None
    try:
        return _opened(entry, whole=whole)
    except (OSError, Damaged) as error:
        get_logger(__name__).warning(f"the cache entry {entry} is damaged and is built again: {error}")
        return None


def _opened(entry: Path, *, whole: bool) -> tuple[Dataset, Counts]:
    """An entry's dataset and counts."""
    about = unsealed(read_text(entry / _CONTENTS))
    # A folder that was renamed or copied to another key would be trained as other data.
    if about["key"] != entry.name:
        raise Damaged(f"it was written as {about['key']}")
    files: Contents = about["files"]
    check_contents(entry, files, whole=whole)
    dataset = open_folder(entry)
    if len(dataset) != about["rows"]:
        raise Damaged(f"it holds {len(dataset)} rows, not {about['rows']}")
    return dataset, Counts(**about["counts"])


def _save(entry: Path, write: Callable[[Path], Counts]) -> None:
    """Write next to the entry, then rename: no reader ever sees half an entry."""
    # By the machine as well: not every network drive has locks that other machines see.
    kind = f".{platform.node()}.work"
    work = entry.with_name(f".{entry.name}{kind}")
    # Who writes holds the lock of the key: what lies there is of a process that was killed. A link is not followed.
    shutil.rmtree(work, ignore_errors=True)
    _remove_dead(entry.parent, kind)
    work.mkdir(mode=0o700)
    try:
        _write_entry(entry, work / "fresh", write)
        if entry.exists():
            # A folder cannot be renamed onto a filled one. Readers that hold the old files open keep them.
            os.replace(entry, work / "old")
        os.replace(work / "fresh", entry)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _remove_dead(folder: Path, kind: str) -> None:
    """Remove what killed processes of this machine left of other keys: of those nobody holds the lock."""
    for work in folder.glob(f".*{glob.escape(kind)}"):
        lock = FileLock(work.with_name(f"{work.name.removesuffix(kind)}.lock"), mode=0o600)
        with suppress(Timeout), lock.acquire(timeout=0):
            shutil.rmtree(work, ignore_errors=True)


def _write_entry(entry: Path, fresh: Path, write: Callable[[Path], Counts]) -> None:
    fresh.mkdir(mode=0o700)
    counts = write(fresh)
    for file in fresh.rglob("*"):
        # `datasets` has written them with the rights of the umask.
        file.chmod(0o700 if file.is_dir() else 0o600)
    about = {"key": entry.name, "rows": len(open_folder(fresh)), "counts": counts.to_dict(), "files": contents(fresh)}
    (fresh / _CONTENTS).touch(mode=0o600)
    (fresh / _CONTENTS).write_text(json.dumps(sealed(about)), encoding="utf-8")
