"""Chunks of every kind of file: what they hold, where they end, and what a damaged file still gives."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from hftune.data.files import Chunk, Row, chunks
from hftune.errors import DataError

RECORDS = [{"text": f"{number} é 世界"} for number in range(1, 1001)]
LINES = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS).encode()


def write(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, rows_per_chunk: int = 256) -> tuple[list[Row], list[DataError]]:
    """The rows and the errors of a file, through chunks that were pickled."""
    travelled = [pickle.loads(pickle.dumps(chunk)) for chunk in chunks([path], rows_per_chunk)]
    reads = [read for chunk in travelled for read in chunk.rows()]
    return [read for read in reads if isinstance(read, Row)], [read for read in reads if isinstance(read, DataError)]


def arrow(records: list[dict[str, Any]], kind: str, batch: int = 100) -> bytes:
    """Records as a Parquet file, an Arrow file or an Arrow stream."""
    table, sink = pa.Table.from_pylist(records), pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(table, sink, row_group_size=batch)
    else:
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=batch)
    return sink.getvalue().to_pybytes()


CSV = ('text,n\n"' + '",1\n"'.join(record["text"] for record in RECORDS) + '",1\n').encode()
KINDS: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: LINES,
    "a.ndjson": lambda: LINES.replace(b"\n", b"\r\n"),
    "a.json": lambda: LINES,
    "b.json": lambda: json.dumps(RECORDS, indent=1).encode(),
    "c.json": lambda: json.dumps(RECORDS, ensure_ascii=False).encode(),
    "a.txt": lambda: "".join(record["text"] + "\n" for record in RECORDS).encode(),
    "a.csv": lambda: CSV,
    "a.tsv": lambda: CSV.replace(b",", b"\t"),
    "a.parquet": lambda: arrow(RECORDS, "parquet"),
    "a.arrow": lambda: arrow(RECORDS, "file"),
    "b.arrow": lambda: arrow(RECORDS, "stream"),
    "a.jsonl.gz": lambda: gzip.compress(LINES[:9000]) + gzip.compress(LINES[9000:]),
    "a.jsonl.zst": lambda: zstandard.compress(LINES[:9000]) + zstandard.compress(LINES[9000:]),
    "b.json.gz": lambda: gzip.compress(json.dumps(RECORDS).encode()),
    "a.csv.zst": lambda: zstandard.compress(CSV),
}


@pytest.mark.parametrize("rows_per_chunk", [1, 300])
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gives_every_record_once_and_in_order(tmp_path: Path, name: str, rows_per_chunk: int) -> None:
    path = write(tmp_path, name, KINDS[name]())
    rows, errors = read(path, rows_per_chunk)
    assert not errors
    assert [row.value["text"] for row in rows] == [record["text"] for record in RECORDS]
    # A record a line, behind a header in tables of text, or one every three lines in the indented array.
    first, step = {"a.csv": (2, 1), "a.tsv": (2, 1), "a.csv.zst": (2, 1), "b.json": (2, 3)}.get(name, (1, 1))
    if name not in ("c.json", "b.json.gz"):
        assert [row.line for row in rows] == [first + step * index for index in range(len(RECORDS))]
    assert all(len(list(chunk.rows())) <= rows_per_chunk for chunk in chunks([path], rows_per_chunk))


def kinds(errors: list[DataError]) -> list[str]:
    return [error.kind for error in errors]


# --- damaged files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_file_of_another_kind(tmp_path: Path, name: str) -> None:
    rows, errors = read(write(tmp_path, name, LINES))
    assert (rows, kinds(errors)) == ([], ["damaged file"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"\n \n\r\n"),
        ("a.jsonl", b"\xef\xbb\xbf\n"),
        ("a.txt", b"\n" * 5000),
        ("a.json", b"[\n]"),
        ("a.json", b" "),
        ("a.csv", b"a,b\n"),
        ("a.csv", b"\n"),
        ("a.jsonl.gz", gzip.compress(b"\n", mtime=0)),
        ("a.jsonl.zst", zstandard.compress(b"")),
        ("a.parquet", None),
        ("a.arrow", None),
    ],
)
def test_a_file_without_a_record_is_one_error(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is None:
        content = arrow([], "parquet" if name == "a.parquet" else "file")
    path = write(tmp_path, name, content)
    rows, errors = read(path)
    assert (rows, kinds(errors)) == ([], ["file without a record"])
    assert errors[0].place == str(path)


def test_chunks_are_lazy(tmp_path: Path) -> None:
    good, absent = write(tmp_path, "a.jsonl", LINES), tmp_path / "absent.jsonl"
    found = chunks([good, absent], 100)
    first: Chunk = next(found)
    assert len(list(first.rows())) == 100
    assert kinds([read for chunk in found for read in chunk.rows() if isinstance(read, DataError)]) == [
        "unreadable file"
    ]
