"""What all readers share: a row, and a chunk of rows that travels to the process that parses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.errors import DataError

MAX_CHUNK_BYTES = 4 << 20
"""A chunk ends with the record that reaches this size, so that long records do not make huge chunks."""

MAX_RECORD_BYTES = 64 << 20
"""More is no record but a fault, or an attack: some ten million tokens. Reading one takes several times as much."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record: its columns, and where it is.

    `line` is the line (1-based) where the record starts; in Parquet, Arrow and generated data its number (1-based).
    """

    value: dict[str, Any]
    file: str
    line: int

    @property
    def origin(self) -> str:
        """`file:line`, as errors show it."""
        return f"{self.file}:{self.line}"


RowOrError = Row | DataError
"""What a chunk gives for a record: a row, or why there is none."""


class Chunk(ABC):
    """Some hundred neighbouring records of one file, not parsed yet. Small, picklable, good for one pass or many."""

    file: str

    @abstractmethod
    def rows(self) -> Iterator[RowOrError]:
        """The records in order. A bad one is a DataError with its place and kind; reading continues behind it."""


@dataclass(frozen=True, slots=True)
class FailedChunk(Chunk):
    """In place of records that cannot be reached, such as those behind the cut in a damaged file: one error."""

    error: DataError
    file: str = ""

    def rows(self) -> Iterator[RowOrError]:
        """The error."""
        yield self.error


@dataclass(frozen=True, slots=True)
class ParsedChunk(Chunk):
    """Records that have been read already."""

    found: list[RowOrError]
    file: str = ""

    def rows(self) -> Iterator[RowOrError]:
        """The records."""
        yield from self.found


Reader = Callable[[Path, int], Iterator[Chunk]]
"""Gives the records of a file in chunks of at most so many."""

COMPRESSED = (".gz", ".zst")
"""What the name of a compressed file ends with."""


def is_compressed(file: Path) -> bool:
    """Whether the name says so."""
    return file.suffix.lower() in COMPRESSED


UNREADABLE_FIX = "Make it readable for you (ls -l shows whose it is), or leave it out of the data."


def too_large(place: str) -> DataError:
    """A record that would take more memory than any true one does."""
    return DataError(
        f"the record has more than {MAX_RECORD_BYTES >> 20} MiB",
        place=place,
        fix="Cut it into several records, one a line.",
        kind="record too large",
    )


def no_record(file: Path) -> FailedChunk:
    """A file in which there is nothing to read."""
    error = DataError(
        "the file holds no record", place=str(file), fix="Remove it or fill it.", kind="file without a record"
    )
    return FailedChunk(error, str(file))


def unreadable(file: Path | str, cause: str) -> FailedChunk:
    """A file that the system will not let us read."""
    error = DataError(f"cannot read the file: {cause}", place=str(file), fix=UNREADABLE_FIX, kind="unreadable file")
    return FailedChunk(error, str(file))
