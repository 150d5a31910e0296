"""Tokenised data on disk, under a fingerprint of all that went into it.

An entry is a folder that appears whole, by renaming, or not at all: `save_to_disk`'s files and `counts.json`. One
process of a machine makes it while the others wait for a file lock: no collective is under way that could time out.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash
from datasets import Dataset, load_from_disk
from filelock import FileLock, Timeout
from transformers import PreTrainedTokenizerBase

import hftune
from hftune.data.encoding import Counts
from hftune.distributed import ranks
from hftune.errors import DataError
from hftune.logging import get_logger
from hftune.user_cache import cache_folder

_COUNTS = "counts.json"
_CHUNK = 1 << 22


def fingerprint(files: list[Path], tokenizer: PreTrainedTokenizerBase, **settings: Any) -> str:
    """128 bits in hex over the files' contents (not their names), the tokenizer, the settings and this room's code.

    XXH3, which reads as fast as memory does: a key to find things by, not a defence against forgery.
    """
    digest = xxhash.xxh3_128()
    about = {
        "hftune": hftune.__version__,
        "code": _code_state(),
        "tokenizer": tokenizer_state(tokenizer),
        "settings": settings,
    }
    digest.update(json.dumps(about, sort_keys=True, default=str).encode())
    for file in files:
        # The suffix decides how a file is read; the size keeps two files apart from one with the same bytes.
        digest.update(f"\0{''.join(file.suffixes).lower()} {file.stat().st_size}\0".encode())
        with open(file, "rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


@functools.cache
def _code_state() -> str:
    """The source of this room: tokenising that has changed must not find what it made before."""
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
    return {"backend": state, "special": special, "chat_template": tokenizer.chat_template}


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
    entry = cache_root(cache_dir) / "datasets" / key
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _one_writer(entry.with_name(f".{key}.lock")) as first:
            found = None if overwrite and first else _load(entry)
            if found is not None:
                get_logger(__name__).info(f"tokenised data from the cache: {entry}")
                return found
            _save(entry, write)
    except OSError as error:
        raise DataError(
            f"cannot write the cache: {error}", place=str(entry), fix="Give a folder with room in HFTUNE_CACHE."
        ) from error
    saved = _load(entry)
    assert saved is not None, f"{entry} was just written"
    return saved


@contextmanager
def _one_writer(path: Path) -> Iterator[bool]:
    """Let one process in at a time, the first of a machine before its others; says whether this is such a first one."""
    lock = FileLock(path)
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


def cache_root(cache_dir: str | None = None) -> Path:
    """Where hftune keeps what it computes once; `cache_dir` wins over the environment's HFTUNE_CACHE."""
    return Path(cache_dir).expanduser() if cache_dir else cache_folder()


def _load(entry: Path) -> tuple[Dataset, Counts] | None:
    """A complete entry, or None for an absent or damaged one."""
    if not (entry / _COUNTS).is_file():
        return None
    try:
        counts = Counts(**json.loads((entry / _COUNTS).read_text(encoding="utf-8")))
        return load_from_disk(str(entry)), counts
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
        get_logger(__name__).warning(f"the cache entry {entry} is damaged and is built again: {error}")
        return None


def _save(entry: Path, write: Callable[[Path], Counts]) -> None:
    """Write beside the entry, then rename: no reader ever sees half an entry."""
    work = Path(tempfile.mkdtemp(prefix=f".{entry.name[:16]}-", dir=entry.parent))
    try:
        fresh, old = work / "fresh", work / "old"
        fresh.mkdir()
        counts = write(fresh)
        (fresh / _COUNTS).write_text(json.dumps(counts.to_dict()), encoding="utf-8")
        if entry.exists():
            # A folder cannot be renamed onto a filled one. Readers that hold the old files open keep them.
            os.replace(entry, old)
        os.replace(fresh, entry)
    finally:
        shutil.rmtree(work, ignore_errors=True)
