"""Tokenised documents on disk: one column of token ids in an Arrow folder, memory-mapped, never read as a whole."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

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
