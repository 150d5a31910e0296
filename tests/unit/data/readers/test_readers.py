"""Chunks of every kind of file: what they hold, where they end, and what a damaged file still gives."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from hftune.data.readers import base, compressed, lines
from hftune.data.readers.files import Chunk, Row, chunks
from hftune.data.readers.lines import LineBytes, LineRange
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
    "a.jsonl.gz": lambda: gzip.compress(LINES[:9000]) + gzip.compress(LINES[9000:]) + b"\0\0",
    "a.jsonl.zst": lambda: zstandard.compress(LINES[:9000]) + zstandard.compress(LINES[9000:]),
    "b.json.gz": lambda: gzip.compress(json.dumps(RECORDS).encode()),
    "a.csv.zst": lambda: zstandard.compress(CSV),
}


@pytest.mark.parametrize("rows_per_chunk", [1, 7, 256, 5000])
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


def test_a_plain_chunk_is_a_place_and_a_packed_one_its_bytes(tmp_path: Path) -> None:
    plain = list(chunks([write(tmp_path, "a.jsonl", LINES)], 256))
    assert [type(chunk) for chunk in plain] == [LineRange] * 4
    assert max(len(pickle.dumps(chunk)) for chunk in plain) < 500
    packed = list(chunks([write(tmp_path, "b.jsonl.gz", gzip.compress(LINES))], 256))
    assert [type(chunk) for chunk in packed] == [LineBytes] * 4


@pytest.mark.parametrize("block", [1, 5, 64, 1 << 20])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_borders_do_not_depend_on_the_blocks_read(monkeypatch: pytest.MonkeyPatch, block: int, end: bytes) -> None:
    content = b"a\n\nbbbb\n" * 5 + b"c" * 50 + b"\n" + b"dd\n" * 9 + b"last" + end
    monkeypatch.setattr(lines, "MAX_CHUNK_BYTES", 40)
    blocks = [content[start : start + block] for start in range(0, len(content), block)]
    found = list(lines._chunk_sizes(blocks, rows_per_chunk=4))
    assert sum(size for size, _, _ in found) == len(content)
    assert sum(count for _, count, _ in found) == content.count(b"\n") + (not end)
    start = 0
    for size, count, _ in found:
        piece = content[start : start + size]
        # Whole lines, 4 at most; a line that reaches the limit of bytes is the chunk's last.
        assert piece.count(b"\n") in (count, count - 1) and count <= 4
        assert len(piece.rstrip(b"\n").rpartition(b"\n")[0]) < 40
        start += size
    assert [size for size, _, _ in found][:3] == [10, 9, 13]


def test_long_records_make_chunks_of_fewer(tmp_path: Path) -> None:
    long = {"text": "x" * (base.MAX_CHUNK_BYTES // 3)}
    content = b"\n".join([json.dumps(long).encode()] * 10)
    for name in ("a.jsonl", "a.jsonl.zst", "b.json"):
        data = zstandard.compress(content) if name.endswith("zst") else content
        data = b"[" + content.replace(b"\n", b",\n") + b"]" if name == "b.json" else data
        counts = [len(list(chunk.rows())) for chunk in chunks([write(tmp_path, name, data)])]
        assert sum(counts) == 10 and max(counts) <= 4, name


# --- what is wrong with one record leaves the others ---------------------------------------------------------------


def kinds(errors: list[DataError]) -> list[str]:
    return [error.kind for error in errors]


BAD_LINES = [
    (b'{"a": 1', "malformed JSON"),
    (b'{"a": NaN}', "malformed JSON"),
    (b'{"a": Infinity}', "malformed JSON"),
    (b'{"a": "\x01"}', "malformed JSON"),
    (b'{"a": 1} {"a": 2}', "malformed JSON"),
    (b"\xef\xbb\xbf{}", "malformed JSON"),
    (b'{"a": 1, "b": 2, "a": 3}', "duplicate key"),
    (b'{"a": [{"b": {"c": 1, "c": 1}}]}', "duplicate key"),
    (b'{"say \\"a\\"": 1, "say \\"a\\"": 2}', "duplicate key"),
    (b'{"a\\\\": 1, "a\\\\" : 2}', "duplicate key"),
    (b'{"a": "\\u0022\\u0022", "b": "x", "b": 1}', "duplicate key"),
    (b'{"a": 18446744073709551616}', "number out of range"),
    (b'{"a": -9223372036854775809}', "number out of range"),
    (b'{"a": ' + b"9" * 6000 + b"}", "number out of range"),
    (b'{"a": 1e999}', "number out of range"),
    (b'{"a": "\\ud83d"}', "half a surrogate pair"),
    (b'{"a": "\xff"}', "not UTF-8"),
    (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
    (b'{"a": "\x00"}', "NUL byte"),
    (b"[1]", "not an object"),
    (b"3", "not an object"),
    (b'"text"', "not an object"),
    (b'{"a": ' + b"[" * 150 + b"]" * 150 + b"}", "nested too deep"),
    (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deep"),
]
GOOD_LINES = [
    b'{"a": 18446744073709551615, "b": -9223372036854775808, "c": 1e30, "d": 12345678901234567890.5}',
    b'{"a": "he said \\"b\\": \\"b\\"", "c": "\\u0022", "\\u0022": 1}',
    b'{"a": {"b": 1}, "c": {"b": 2}, "b" : [{"b": 1}, {"b": 2}]}',
    b'{"a": "\\ud83d\\ude42 \\\\ud83d"}',
    b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}",
    b'  {"a": "\xe2\x80\xa8"}\t\r',
]


@pytest.mark.parametrize(("line", "kind"), BAD_LINES)
def test_a_bad_line_is_one_error_between_good_rows(tmp_path: Path, line: bytes, kind: str) -> None:
    path = write(tmp_path, "a.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    rows, errors = read(path)
    assert [row.line for row in rows] == [1, 3]
    assert kinds(errors) == [kind]
    assert errors[0].place == f"{path}:2" and errors[0].fix and "\n" not in errors[0].cause


@pytest.mark.parametrize("line", GOOD_LINES)
def test_what_looks_suspicious_and_is_not(tmp_path: Path, line: bytes) -> None:
    rows, errors = read(write(tmp_path, "a.jsonl", line + b"\n"))
    assert not errors and rows[0].value == json.loads(line)


@pytest.mark.parametrize(("line", "kind"), [entry for entry in BAD_LINES if entry[1] in ("duplicate key", "not UTF-8")])
def test_a_bad_record_of_an_array_leaves_the_others(tmp_path: Path, line: bytes, kind: str) -> None:
    path = write(tmp_path, "a.json", b'[{"a": 1},\n' + line + b',\n{"a": 2}]')
    rows, errors = read(path)
    assert [row.line for row in rows] == [1, 3] and kinds(errors) == [kind]
    assert errors[0].place == f"{path}:2"


def test_a_broken_array_loses_what_is_behind_the_break(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", '[{"a": 1},\n{"a": 2},\n{"a" 3},\n{"a": 4}]')
    rows, errors = read(path)
    assert [row.value["a"] for row in rows] == [1, 2]
    assert kinds(errors) == ["malformed JSON"] and errors[0].place == f"{path}:3"
    assert "no record behind this line can be read" in errors[0].cause


@pytest.mark.parametrize("size", [100, 5_000_000])
def test_a_record_of_an_array_may_be_longer_than_a_window(tmp_path: Path, size: int) -> None:
    records = [{"a": "世" * size, "n": 1234567}, {"a": "end"}]
    path = write(tmp_path, "a.json", json.dumps(records, ensure_ascii=False, indent=2))
    rows, errors = read(path)
    assert not errors and [row.value for row in rows] == records and [row.line for row in rows] == [2, 6]


def test_a_window_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [{"a": 'quote " and \\ 世界 🙂', "n": [1.5e-7, -12, True, None]}, {"b": {"c": "\n"}}]
    path = write(tmp_path, "a.json", b"\xef\xbb\xbf \n" + json.dumps(records, ensure_ascii=False, indent=1).encode())
    for block in range(1, 40):
        monkeypatch.setattr(compressed, "BLOCK", block)
        rows, errors = read(path)
        assert not errors and [row.value for row in rows] == records and [row.line for row in rows] == [3, 12]


# --- tables -------------------------------------------------------------------------------------------------------


def test_csv_fields_hold_anything(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", b'\xef\xbb\xbf prompt ,response\r\n"a, ""b""\nc",\xe4\xb8\x96\r\n\r\n,x\r\nq,\r\n')
    rows, errors = read(path)
    assert not errors
    assert [(row.line, row.value) for row in rows] == [
        (2, {"prompt": 'a, "b"\nc', "response": "世"}),
        (5, {"prompt": "", "response": "x"}),
        (6, {"prompt": "q", "response": ""}),
    ]


@pytest.mark.parametrize(
    ("content", "line", "kind", "rows"),
    [
        (b"a,b\n1,2\n3\n4,5\n", 3, "ragged CSV record", 2),
        (b"a,b\n1,2\n3,4,5\n4,5\n", 3, "ragged CSV record", 2),
        (b'a,b\n1,2\n"x"y,4\n4,5\n', 3, "malformed CSV", 2),
        (b'a,b\n1,2\n"x,4\n4,5\n', 3, "malformed CSV", 1),
        (b"a,b\n1,2\n\xff,4\n4,5\n", 3, "not UTF-8", 2),
        (b"a,b\n1,2\n\x00,4\n4,5\n", 3, "NUL byte", 2),
        (b"a,a\n1,2\n", 1, "bad CSV header", 0),
        (b"a,\n1,2\n", 1, "bad CSV header", 0),
    ],
)
def test_broken_csv(tmp_path: Path, content: bytes, line: int, kind: str, rows: int) -> None:
    path = write(tmp_path, "a.csv", content)
    found, errors = read(path)
    assert (len(found), kinds(errors)) == (rows, [kind])
    assert errors[0].place == f"{path}:{line}" and errors[0].fix


def test_csv_fields_may_be_longer_than_the_modules_limit(tmp_path: Path) -> None:
    rows, errors = read(write(tmp_path, "a.csv", "text\n" + "x" * 3_000_000 + "\n"))
    assert not errors and len(rows[0].value["text"]) == 3_000_000


def test_nulls_inside_objects_are_absent(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]
    records = [{"messages": messages, "note": None}]
    for kind in ("parquet", "file", "stream"):
        path = write(tmp_path, "a.parquet" if kind == "parquet" else "a.arrow", arrow(records, kind))
        rows, errors = read(path)
        assert not errors and rows[0].value == records[0]


@pytest.mark.parametrize("kind", ["parquet", "stream"])
def test_a_value_without_a_counterpart_is_one_error(tmp_path: Path, kind: str) -> None:
    days = (
        pa.array([0, 2**62, 1], pa.timestamp("us")) if kind == "parquet" else pa.array([0, 2**62, 1], pa.timestamp("s"))
    )
    table, sink = pa.table({"day": days, "text": ["a", "b", "c"]}), pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    path = write(tmp_path, "a.parquet" if kind == "parquet" else "a.arrow", sink.getvalue().to_pybytes())
    rows, errors = read(path)
    assert [row.value["text"] for row in rows] == ["a", "c"] and rows[0].value["day"].date() == date(1970, 1, 1)
    assert kinds(errors) == ["unreadable value"] and errors[0].place == f"{path}:2"


def test_broken_utf8_in_a_column_is_one_error(tmp_path: Path) -> None:
    column = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    for kind, name in (("parquet", "a.parquet"), ("file", "a.arrow")):
        sink, table = pa.BufferOutputStream(), pa.table({"text": column})
        if kind == "parquet":
            pq.write_table(table, sink)
        else:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        rows, errors = read(write(tmp_path, name, sink.getvalue().to_pybytes()))
        assert [row.value["text"] for row in rows] == ["a", "c"] and kinds(errors) == ["unreadable value"]


def test_a_damaged_row_group_leaves_the_others(tmp_path: Path) -> None:
    content = bytearray(arrow(RECORDS, "parquet"))
    start = pq.ParquetFile(pa.BufferReader(bytes(content))).metadata.row_group(3).column(0).data_page_offset
    content[start : start + 4] = b"\xff\xff\xff\xff"
    path = write(tmp_path, "a.parquet", bytes(content))
    rows, errors = read(path)
    assert [row.line for row in rows] == [*range(1, 301), *range(401, 1001)]
    assert kinds(errors) == ["damaged file"] and errors[0].place == f"{path}:301"
    assert "from number 301 to 400 are lost" in errors[0].cause


def test_a_flipped_bit_in_arrow_does_not_end_the_process(tmp_path: Path) -> None:
    content = arrow(RECORDS[:50], "stream")
    # An offset of the text column that points far behind its data.
    offset = content.index((len("1 é 世界".encode()) * 1).to_bytes(4, "little"))
    broken = content[: offset + 2] + b"\x7f\x7f" + content[offset + 4 :]
    rows, errors = read(write(tmp_path, "a.arrow", broken))
    assert len(rows) + len(errors) == 50 and 1 <= len(errors) <= 2
    assert set(kinds(errors)) == {"unreadable value"}


# --- damaged files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "b.json.gz", "a.csv.zst", "a.txt.gz"])
def test_a_cut_file_gives_what_is_before_the_cut(tmp_path: Path, name: str) -> None:
    plain = LINES if name != "b.json.gz" else json.dumps(RECORDS, indent=1).encode()
    plain = CSV if "csv" in name else plain
    # Two members: the first is whole.
    pack = gzip.compress if name.endswith("gz") else zstandard.compress
    middle = plain.index(b"\n", len(plain) // 2) + 1
    content = pack(plain[:middle]) + pack(plain[middle:])[:-60]
    path = write(tmp_path, name, content)
    rows, errors = read(path)
    assert 450 <= len(rows) < 1000
    assert kinds(errors) == ["damaged file"]
    file, _, line = (errors[0].place or "").rpartition(":")
    assert file == str(path) and int(line) >= rows[-1].line
    assert "are lost" in errors[0].cause


def test_a_file_that_shrinks_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", LINES)
    found = list(chunks([path]))
    path.write_bytes(LINES[:100])
    assert kinds([read for read in found[-1].rows() if isinstance(read, DataError)]) == ["file changed"]
    path.unlink()
    assert kinds([read for read in found[0].rows() if isinstance(read, DataError)]) == ["unreadable file"]
    rows, errors = read(path)
    assert (rows, kinds(errors)) == ([], ["unreadable file"])


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
