"""Files to rows, each of which knows the file and line it came from.

Nothing is guessed and nothing is skipped: a record that cannot be read is a DataError with its place and the decoder's
message. Blank lines are the one thing passed over.

`chunks` costs little and is for the parent process; `chunk.rows()` parses, in whichever process that is.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from hftune.data.specs import files_of_split, separate_split
from hftune.errors import DataError
from hftune.logging import notice
from hftune.on_demand import on_demand
from hftune.opening.files import open_file

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

    @abstractmethod
    def rows(self) -> Iterator[RowOrError]:
        """The records in order. A bad one is a DataError with its place and kind; reading continues behind it."""


@dataclass(frozen=True, slots=True)
class FailedChunk(Chunk):
    """In place of records that cannot be reached, such as those behind the cut in a damaged file: one error."""

    error: DataError

    def rows(self) -> Iterator[RowOrError]:
        """The error."""
        yield self.error


@dataclass(frozen=True, slots=True)
class ParsedChunk(Chunk):
    """Records that have been read already."""

    found: list[RowOrError]

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


def suffix_of(file: Path) -> str:
    """The suffix that decides how a file is read: a.jsonl.gz holds lines."""
    return (Path(file.stem) if is_compressed(file) else file).suffix.lower()


UNREADABLE_FIX = "Make it readable for you (ls -l shows whose it is), or leave it out of the data."


def too_large(place: str | None = None) -> DataError:
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
    return FailedChunk(error)


def unreadable(file: Path | str, cause: str) -> FailedChunk:
    """A file that the system will not let us read."""
    error = DataError(f"cannot read the file: {cause}", place=str(file), fix=UNREADABLE_FIX, kind="unreadable file")
    return FailedChunk(error)


# What reads a kind of file: a function of the file and the number of rows a chunk.
_TEXT_READERS = {
    ".txt": "hftune.data.text_files:text_chunks",
    ".json": "hftune.data.text_files:json_chunks",
    ".jsonl": "hftune.data.text_files:json_line_chunks",
    ".ndjson": "hftune.data.text_files:json_line_chunks",
    ".csv": "hftune.data.text_files:csv_chunks",
    ".tsv": "hftune.data.text_files:csv_chunks",
}
_BINARY_READERS = {
    ".parquet": "hftune.data.arrow_files:table_chunks",
    ".arrow": "hftune.data.arrow_files:table_chunks",
}

SUFFIXES = (
    *_TEXT_READERS,
    *_BINARY_READERS,
    *(f"{suffix}{packed}" for suffix in _TEXT_READERS for packed in COMPRESSED),
)
"""What a data file's name may end with."""

_ACCEPTED = f"{', '.join((*_TEXT_READERS, *_BINARY_READERS))}; text also as {' and '.join(COMPRESSED)}"
_TABLES = (".xlsx", ".xls", ".ods")
# What lies next to data and is none: `datasets`, model hubs, LLaMA-Factory and hftune write it.
_METADATA = ("dataset_info.json", "dataset_infos.json", "hftune.json")
_DOCUMENTS = ("readme", "license", "licence", "notice", "citation", "changelog")
_DOCUMENT_SUFFIXES = ("", ".md", ".txt", ".rst", ".cff")
# What `Dataset.save_to_disk` writes.
_STATE, _SAVED = "state.json", "data*.arrow"
_SPLITS = "dataset_dict.json"


# --- which files --------------------------------------------------------------------------------------------------


def find_files(path: str, flag: str, *, say: bool = True) -> list[Path]:
    """The data files at `path` (a file, or a folder searched recursively), sorted by name.

    Hidden files and folders (a name that starts with a dot) are left out; files that are no data are left out with a
    notice. Of a folder that `datasets` saved, the files are its data alone. Of one whose names tell splits, they
    are those of the training split (`specs`). Links to files and folders are followed, even out of the folder:
    that is how people gather data.

    Args:
        path: File or folder, or FOLDER@SPLIT; `~` is expanded.
        flag: The flag that gave the path, such as `--train_file_dir`; errors name it.
        say: Say what is left out.

    Raises:
        DataError: Nothing there, no file with a known suffix, an empty file, no such split, or a saved dictionary of
            splits of which none is for training; a name for data behind which there is no file that can be read to its
            end.
    """
    root, split = separate_split(path)
    if not os.path.exists(root):
        raise DataError(f"{path} does not exist", place=flag, fix=f"Give a folder or a file ({_ACCEPTED}).")
    try:
        seen = _data_of(root) if root.is_dir() else [root]
    except OSError as error:
        cause = f"cannot read {path}: {error.strerror or error}"
        raise DataError(cause, place=flag, fix=UNREADABLE_FIX, kind="unreadable file") from error
    # By the whole name: `a.jsonl.gz` ends with a suffix of two parts.
    files = [file for file in seen if file.name.lower().endswith(SUFFIXES)]
    left_out = [file for file in seen if file not in set(files)]
    if root.is_dir() and files:
        files = files_of_split(files, root, split, flag, say=say)
        _check_splits(root, files, flag)
    # A file that was named is refused whatever its suffix; in a folder only what looks like data matters.
    _refuse_unreadable([root] if seen == [root] else files, flag)
    if not files:
        found = ", ".join(file.name for file in seen[:8]) + (", ..." if len(seen) > 8 else "") if seen else "nothing"
        tables = any(file.suffix.lower() in _TABLES for file in seen)
        first = "Save the table as CSV in UTF-8. " if tables else ""
        fix = f"{first}Files must be named with one of {_ACCEPTED}."
        raise DataError(f"no data file in {path}: found {found}", place=flag, fix=fix)
    for file in files:
        # An empty file is most often a download that failed; training without it would not be noticed.
        if file.stat().st_size == 0:
            raise DataError(f"{file} is empty (0 bytes)", place=flag, fix="Remove it or fill it.", kind="empty file")
    if say and left_out:
        names = ", ".join(file.name for file in left_out[:5]) + (", ..." if len(left_out) > 5 else "")
        notice(f"{len(left_out)} file(s) in {path} are left out, because their names do not end as data: {names}")
    return files


def _refuse_unreadable(files: list[Path], flag: str) -> None:
    """Refuse what has the name of data and is no file, or one that may not be read; all of them in one message."""
    faults = []
    for file in files:
        try:
            open_file(file).close()
        except OSError as error:
            lost = file.is_symlink() and not os.path.exists(file)
            faults.append(f"{file}: {'a link that leads nowhere' if lost else error.strerror or error}")
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise DataError(
            f"no data can be read: {'; '.join(faults[:5])}{more}",
            place=flag,
            fix="Fix or remove what is named; data are regular files, or links to some.",
            kind="unreadable file",
        )


def _data_of(root: Path) -> list[Path]:
    """All visible files of a folder but metadata, in one fixed order."""
    visible = _visible_files(root)
    # Next to its data, `datasets` leaves caches of earlier maps and filters: the same records again.
    saved = {file.parent for file in visible if file.match(_SAVED) and (file.parent / _STATE).is_file()}
    left = {file for file in visible if file.parent in saved and file.suffix in (".arrow", ".json")}
    return [file for file in visible if not _is_metadata(file) and (file not in left or file.match(_SAVED))]


def _is_metadata(file: Path) -> bool:
    """Whether a file says something about data rather than being data."""
    name = file.name.lower()
    if name == _SPLITS or name in _METADATA:
        return True
    return Path(name).stem in _DOCUMENTS and file.suffix.lower() in _DOCUMENT_SUFFIXES


def _visible_files(root: Path) -> list[Path]:
    """All but folders below `root` without a dot at the start of any name on the way.

    Links to folders are followed once, but not to one that holds `root`: a link to / would gather the whole machine.
    """
    found: list[Path] = []
    home = root.resolve()
    # Resolved paths, so that two links to one folder, or a ring of them, are walked through once.
    entered = {home, *home.parents}
    waiting = [root]
    while waiting:
        for entry in waiting.pop().iterdir():
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                found.append(entry)
            elif entry.resolve() not in entered:
                entered.add(entry.resolve())
                waiting.append(entry)
    # Names, not the order of the file system: the same data must give the same records on every machine.
    return sorted(found, key=lambda file: file.relative_to(root).as_posix())


def _check_splits(root: Path, files: list[Path], flag: str) -> None:
    """A saved dictionary of splits is not one data set, and their names do not say which is for training."""
    splits = sorted({file.parent.name for file in files})
    # A dictionary with one split is that split.
    if len(splits) > 1 and (root / _SPLITS).is_file():
        raise DataError(
            f"{root} holds the splits {', '.join(splits)}",
            place=flag,
            fix=f"Name the folder of one of them, such as {root / splits[-1]}.",
        )


# --- their records ------------------------------------------------------------------------------------------------


def chunks(files: list[Path], rows_per_chunk: int = 256) -> Iterator[Chunk]:
    """The records of all files in order, as chunks that any process can parse.

    Memory does not grow with the data. Plain .jsonl and .txt are only searched for line ends here; compressed
    files are decompressed here; Parquet and Arrow are cut into Arrow streams; CSV and .json into records.

    Args:
        files: From `find_files`.
        rows_per_chunk: At most; a chunk of long records has fewer.

    Returns:
        Chunks of one file each. What is wrong with a file as a whole (damaged, without a record, unreadable) is a chunk
        that gives one error.
    """
    for file in files:
        reader: Reader = on_demand((_TEXT_READERS | _BINARY_READERS)[suffix_of(file)])
        try:
            yield from reader(file, rows_per_chunk)
        except OSError as error:
            yield unreadable(file, str(error.strerror or error))


def first_rows(found: Iterator[Chunk], limit: int) -> Iterator[Chunk]:
    """The first `limit` records of some chunks; what lies behind them is not read. They are parsed in this process."""
    left = limit
    for chunk in found:
        taken = list(islice(chunk.rows(), left))
        left -= len(taken)
        yield ParsedChunk(taken)
        if not left:
            return


def sampled_positions(count: int, number: int, seed: int) -> list[int]:
    """The positions of `number` of `count` records, drawn as `datasets.Dataset.shuffle` does, sorted."""
    # As `datasets` does it, so that a seed chosen with MedicalGPT gives the records that it gave there.
    return sorted(np.random.default_rng(seed).permutation(count)[:number].tolist())
