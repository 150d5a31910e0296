"""The records that are left, as they were: lines and bytes of text files, rows of tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hftune.data.readers.base import is_compressed
from hftune.data.readers.columnar import ArrowRecords
from hftune.data.readers.compressed import read_blocks
from hftune.data.readers.files import chunks
from hftune.data.readers.json_array import JsonRecords
from hftune.errors import DataError


def write_kept(file: Path, target: Path, lines: np.ndarray, kept: np.ndarray) -> Path:
    """Write the records of a file that are kept, in its format, decompressed; returns what was written.

    Args:
        file: Every record of it has been read.
        target: Does not exist; a compressed file's loses the end of its name.
        lines: Where each of its records begins, as `Row.line`.
        kept: Whether each is kept.

    Raises:
        DataError: The file has changed since it was read.
    """
    target = target.with_suffix("") if is_compressed(file) else target
    target.parent.mkdir(parents=True, exist_ok=True)
    first = next(chunks([file]))
    # The first chunk tells how the file is read: a .json file may hold an array, or lines.
    if isinstance(first, JsonRecords):
        _write_array(file, target, kept)
    elif isinstance(first, ArrowRecords):
        _write_table(file, target, kept)
    else:
        with target.open("xb") as stream:
            _write_lines(file, stream, lines, kept)
    return target


def _write_lines(file: Path, stream: BinaryIO, lines: np.ndarray, kept: np.ndarray) -> None:
    """Byte for byte; what stands before the first record, such as the names of columns, is kept."""
    number, at, writes, ended = 0, 0, True, True
    for block in read_blocks(file):
        # Also of a line without an end no more than a block is held.
        for piece in _pieces(block):
            if ended:
                number += 1
                if at < len(lines) and lines[at] == number:
                    writes, at = bool(kept[at]), at + 1
            ended = piece.endswith(b"\n")
            if writes:
                stream.write(piece)
    if at < len(lines):
        raise changed(file)


def _pieces(block: bytes) -> Iterator[bytes]:
    """Lines that end at line feeds only."""
    *whole, rest = block.split(b"\n")
    yield from (line + b"\n" for line in whole)
    if rest:
        yield rest


def _write_array(file: Path, target: Path, kept: np.ndarray) -> None:
    at = 0
    with target.open("xb") as stream:
        stream.write(b"[")
        before = b"\n"
        for chunk in chunks([file]):
            for _, raw in chunk.records if isinstance(chunk, JsonRecords) else ():
                if isinstance(raw, bytes) and _is_kept(kept, at, file):
                    stream.write(before + raw)
                    before = b",\n"
                at += 1
        stream.write(b"\n]\n")


def _write_table(file: Path, target: Path, kept: np.ndarray) -> None:
    at, writer = 0, None
    try:
        for chunk in chunks([file]):
            if not isinstance(chunk, ArrowRecords):
                continue
            table = chunk.table()
            chosen = [_is_kept(kept, at + row, file) for row in range(len(table))]
            at += len(table)
            if writer is None:
                make = pq.ParquetWriter if file.suffix.lower() == ".parquet" else pa.ipc.new_stream
                writer = make(str(target), table.schema)
            writer.write_table(table.filter(pa.array(chosen, pa.bool_())))
    finally:
        if writer is not None:
            writer.close()


def _is_kept(kept: np.ndarray, at: int, file: Path) -> bool:
    if at >= len(kept):
        raise changed(file)
    return bool(kept[at])


def changed(file: Path) -> DataError:
    """The error for data that is written to while it is read."""
    return DataError(
        "the file changed while it was read",
        place=str(file),
        fix="Let nothing write to it, and start again.",
        kind="file changed",
    )
