"""Tokenised documents on disk, and the order in which the tokens of one source are trained.

Documents are one column of token ids in an Arrow folder, memory-mapped, never read as a whole. A source of them is an
endless stream of tokens, epoch after epoch. Each epoch holds every document once, in an order of its own:

1. The documents are cut, as they lie on disk, into `shards` pieces of equal number (the logical shards).
2. The shards are visited in a random order, a window of them at a time; a window holds `buffer` documents or more.
3. Within a window all documents are shuffled together.

So a window mixes documents from all over the source, only one window's index is in memory, and *any position of the
stream can be found at once*: how many tokens each shard holds is known beforehand from Arrow's offsets. Nothing has
to be replayed, nothing has been fetched and not yet trained, and no process owns a shard. What a checkpoint must hold
is one number a source. That is why the number of processes, DataLoader workers and the batch size may change at any
point, and why `shards` need not be divisible by any of them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hftune.data.mixture import permutation
from hftune.data.storage import STATE, is_int_list, open_folder
from hftune.data.tokenized_folder import open_split
from hftune.errors import DataError

COLUMNS = ("input_ids", "tokens")
"""Names of the column of token ids: Hugging Face's, and fms-fsdp's."""

_MAKE_AGAIN = "Give a folder made by `hftune tokenize` or by `Dataset.save_to_disk`."


class Documents:
    """The documents of one folder, by number; lengths come from Arrow's offsets, without touching a token.

    Args:
        folder: What `datasets.Dataset.save_to_disk` wrote.
        name: What the source is called: in errors, logs and the state of a checkpoint.
        checked: Whether this run has looked already whether the folder is damaged.

    Raises:
        DataError: No such folder, a damaged one, no column of integer lists, nulls, or no token.
    """

    def __init__(self, folder: str | Path, name: str | None = None, *, checked: bool = False) -> None:
        self.folder, self._checked = Path(folder), checked
        self.name = name or self.folder.name
        self._chunks = self._open()
        # Sums of the chunks are enough to find any document; offsets of single documents stay on the disk until asked
        # for.
        rows = [len(chunk) for chunk in self._chunks]
        sizes = [int(chunk.offsets[len(chunk)].as_py()) - int(chunk.offsets[0].as_py()) for chunk in self._chunks]
        self._first_document = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self._first_token = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        if self.tokens == 0:
            raise DataError(f"{self.folder} holds no token", fix=_MAKE_AGAIN)

    def _open(self) -> list[Any]:
        """The Arrow list arrays of the documents, in order, none of them empty."""
        return _token_chunks(self.folder, self._checked)

    def __len__(self) -> int:
        """Number of documents, empty ones among them."""
        return int(self._first_document[-1])

    @property
    def tokens(self) -> int:
        """Number of tokens of all documents."""
        return int(self._first_token[-1])

    def tokens_before(self, document: int) -> int:
        """Tokens of all documents in front of this one, 0 to `len(self)`."""
        if document == len(self):
            return self.tokens
        chunk, row = self._place(document)
        offsets, _ = self._view(chunk)
        return int(self._first_token[chunk]) + int(offsets[row] - offsets[0])

    def lengths(self, first: int, last: int) -> np.ndarray:
        """Tokens of each document from `first` to before `last`: int64."""
        if first >= last:
            return np.empty(0, dtype=np.int64)
        parts = []
        for chunk in range(self._place(first)[0], self._place(last - 1)[0] + 1):
            start = int(self._first_document[chunk])
            offsets, _ = self._view(chunk)
            # A slice of the mapped offsets: lengths of documents outside of it are not read.
            parts.append(np.diff(offsets[max(first - start, 0) : last - start + 1]))
        return np.concatenate(parts).astype(np.int64, copy=False)

    def read(self, document: int, begin: int, end: int) -> np.ndarray:
        """Token ids `begin` to before `end` of a document: a view of the mapped file, in its integer type."""
        chunk, row = self._place(document)
        offsets, values = self._view(chunk)
        start = int(offsets[row])
        return values[start + begin : start + end]

    def _place(self, document: int) -> tuple[int, int]:
        """The chunk that holds a document, and its row there."""
        chunk = int(np.searchsorted(self._first_document, document, side="right")) - 1
        return chunk, document - int(self._first_document[chunk])

    def _view(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """(offsets, token ids) of a chunk, without a copy."""
        array = self._chunks[chunk]
        return array.offsets.to_numpy(zero_copy_only=True), array.values.to_numpy(zero_copy_only=True)

    def __getstate__(self) -> dict[str, Any]:
        """To a spawned worker goes the path; it maps the files itself."""
        # Mapped files cannot be pickled, and sending their contents would copy the corpus to each worker.
        return {"folder": self.folder, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # `checked`: the parent has compared the digests; each worker reading the corpus would take as long as
        # training.
        Documents.__init__(self, state["folder"], state["name"], checked=True)

    def layout(self, boundaries: np.ndarray) -> str:
        """A short digest over the number of documents and the tokens up to each boundary (document numbers).

        Files that were made again with another tokenizer, other records or another order give another digest.
        """
        counted = [len(self), *(self.tokens_before(int(boundary)) for boundary in boundaries)]
        return hashlib.sha256(np.asarray(counted, dtype=np.int64).tobytes()).hexdigest()[:16]


def _token_chunks(folder: Path, checked: bool) -> list[Any]:
    """The Arrow list arrays of the column of token ids, those without a row left out."""
    if not (folder / STATE).is_file():
        parts = sorted(str(state.parent) for state in folder.glob(f"*/{STATE}"))
        if parts:
            raise DataError(f"{folder} holds several splits", fix=f"Name one of them: {', '.join(parts)}.")
        raise DataError(f"{folder} is no tokenised folder: it has no {STATE}", fix=_MAKE_AGAIN)
    # Checking reads every byte once a machine; see `open_split`.
    dataset = open_folder(folder) if checked else open_split(folder)
    column = next((name for name in COLUMNS if name in dataset.column_names), None)
    if column is None:
        found = ", ".join(dataset.column_names)
        raise DataError(f"{folder} has no column input_ids, only: {found}", fix=_MAKE_AGAIN)
    array = dataset.data.column(column)
    if not is_int_list(array.type):
        raise DataError(f"{column} of {folder} is {array.type}, not lists of integers", fix=_MAKE_AGAIN)
    # `searchsorted` over first documents would find an empty chunk in place of the one behind it.
    chunks = [chunk for chunk in array.chunks if len(chunk)]
    if any(chunk.null_count or chunk.values.null_count for chunk in chunks):
        raise DataError(f"{column} of {folder} holds nulls", fix=_MAKE_AGAIN)
    return chunks


class Segment(NamedTuple):
    """Tokens `begin` to before `end` of a document of a source, by number."""

    document: int
    begin: int
    end: int


class _Window(NamedTuple):
    """Documents in their order of training, and the tokens in front of each, with the total at the end."""

    documents: np.ndarray
    starts: np.ndarray


class SourceOrder:
    """Where in a source's documents a position of its endless stream lies.

    Args:
        documents: The source.
        seed: With the source's name, what all its orders depend on.
        shards: Logical shards. More make a window more mixed, fewer make longer sequential reads.
        buffer: Documents that are shuffled together at least; 0 keeps the order of the files.
    """

    _KEPT = 3
    """Windows kept: a block may reach from one into the next, and prefetching may lag by one."""

    def __init__(self, documents: Documents, *, seed: int, shards: int, buffer: int) -> None:
        self.documents = documents
        self.shuffled = buffer > 0
        # With the name of the source, so that two sources of one length do not have the same order; crc32, since
        # Python's hash of a text changes from process to process.
        self._key = (seed & 0xFFFFFFFF, zlib.crc32(documents.name.encode()))
        self.boundaries = np.arange(shards + 1, dtype=np.int64) * len(documents) // shards
        self._shard_tokens = np.diff([documents.tokens_before(int(boundary)) for boundary in self.boundaries])
        # A source may have fewer documents than logical shards; most of them are empty then.
        per_shard = max(len(documents) / shards, 1e-9)
        self._window = min(max(1, -int(-buffer // per_shard)), shards)
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._windows: dict[tuple[int, int], _Window] = {}

    @property
    def tokens(self) -> int:
        """Tokens of an epoch."""
        return self.documents.tokens

    def segments(self, position: int, count: int) -> list[Segment]:
        """The stretch of `count` tokens from `position` of the stream on, as pieces of documents.

        It may reach over the end of an epoch, and over several of a tiny source.
        """
        found: list[Segment] = []
        while count > 0:
            epoch, within = divmod(position, self.tokens)
            # By position alone: no document in front of it is looked at.
            _, starts = self._epoch(epoch)
            number = int(np.searchsorted(starts, within, side="right")) - 1
            window = self._load(epoch, number)
            taken = min(count, int(starts[number + 1]) - within)
            found += _cut(window, within - int(starts[number]), taken)
            position, count = position + taken, count - taken
        return found

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards in the order of this epoch, and the tokens in front of each window, with the total at the end."""
        if epoch not in self._epochs:
            _make_room(self._epochs, self._KEPT)
            shards = len(self._shard_tokens)
            # A buffer of 0 asks for the order of the files, which held-out blocks have.
            order = permutation(shards, *self._key, epoch) if self.shuffled else np.arange(shards)
            sums = np.add.reduceat(self._shard_tokens[order], np.arange(0, shards, self._window))
            self._epochs[epoch] = order, np.concatenate([[0], np.cumsum(sums)])
        return self._epochs[epoch]

    def _load(self, epoch: int, number: int) -> _Window:
        """A window's documents and where each begins."""
        key = epoch, number
        if key not in self._windows:
            _make_room(self._windows, self._KEPT)
            order, _ = self._epoch(epoch)
            shards = order[number * self._window : (number + 1) * self._window]
            ranges = [(int(self.boundaries[shard]), int(self.boundaries[shard + 1])) for shard in shards]
            documents = np.concatenate([np.arange(first, last) for first, last in ranges])
            lengths = np.concatenate([self.documents.lengths(first, last) for first, last in ranges])
            if self.shuffled:
                mixed = permutation(len(documents), *self._key, epoch, number)
                documents, lengths = documents[mixed], lengths[mixed]
            self._windows[key] = _Window(documents, np.concatenate([[0], np.cumsum(lengths)]))
        return self._windows[key]


def _cut(window: _Window, position: int, count: int) -> Iterator[Segment]:
    """Pieces of `count` tokens from `position` in the window on; empty documents give none."""
    first = int(np.searchsorted(window.starts, position, side="right")) - 1
    last = int(np.searchsorted(window.starts, position + count, side="left"))
    for place in range(first, last):
        start = int(window.starts[place])
        begin, end = max(position - start, 0), min(position + count, int(window.starts[place + 1])) - start
        if end > begin:
            yield Segment(int(window.documents[place]), begin, end)


def _make_room(cache: dict[Any, Any], kept: int) -> None:
    """Drop the oldest entry of a full cache; dictionaries keep the order of insertion."""
    # Not an lru_cache: the entries belong to this object and go to workers with it.
    while len(cache) >= kept:
        del cache[next(iter(cache))]
