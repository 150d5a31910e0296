"""Parquet and Arrow: values, damage, and what has no counterpart in Python."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hftune.data import arrow_files as columnar
from tests.unit.data.test_chunks import RECORDS, arrow, kinds, read, write


def test_nulls_inside_objects_are_absent(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]
    records = [{"messages": messages, "note": None}, {"messages": None, "note": "x"}]
    for kind in ("parquet", "file", "stream"):
        path = write(tmp_path, "a.parquet" if kind == "parquet" else "a.arrow", arrow(records, kind))
        rows, errors = read(path)
        assert not errors and [row.value for row in rows] == records


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


def test_a_damaged_row_group_loses_what_is_behind_it(tmp_path: Path) -> None:
    content = bytearray(arrow(RECORDS, "parquet"))
    start = pq.ParquetFile(pa.BufferReader(bytes(content))).metadata.row_group(3).column(0).data_page_offset
    content[start : start + 4] = b"\xff\xff\xff\xff"
    path = write(tmp_path, "a.parquet", bytes(content))
    rows, errors = read(path, rows_per_chunk=100)
    assert [row.line for row in rows] == [*range(1, 301)]
    assert kinds(errors) == ["damaged file"] and errors[0].place == f"{path}:301"
    assert "from number 301 on are lost" in errors[0].cause


def test_an_empty_batch_is_passed_over(tmp_path: Path) -> None:
    batch, sink = pa.RecordBatch.from_pylist([{"text": "a"}]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for one in (batch, batch.slice(0, 0), batch):
            writer.write_batch(one)
    rows, errors = read(write(tmp_path, "a.arrow", sink.getvalue().to_pybytes()))
    assert ([row.line for row in rows], errors) == ([1, 2], [])


def test_a_flipped_bit_in_arrow_does_not_end_the_process(tmp_path: Path) -> None:
    content = arrow(RECORDS[:50], "stream")
    # An offset of the text column that points far behind its data.
    offset = content.index((len("1 é 世界".encode()) * 1).to_bytes(4, "little"))
    broken = content[: offset + 2] + b"\x7f\x7f" + content[offset + 4 :]
    rows, errors = read(write(tmp_path, "a.arrow", broken))
    assert len(rows) + len(errors) == 50 and 1 <= len(errors) <= 2
    assert set(kinds(errors)) == {"unreadable value"}


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_a_record_too_large_leaves_the_others(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "MAX_RECORD_BYTES", 3000)
    records = [{"text": "x" * (9000 if number == 7 else 100)} for number in range(20)]
    path = write(tmp_path, "a.parquet" if kind == "parquet" else "a.arrow", arrow(records, kind))
    rows, errors = read(path)
    assert [row.line for row in rows] == [number + 1 for number in range(20) if number != 7]
    assert kinds(errors) == ["record too large"] and errors[0].place == f"{path}:8"


def test_a_dictionary_is_not_sent_with_each_slice() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "y" * 9000, None, "x"]).dictionary_encode()], ["a"])
    stream = columnar._serialised(batch.slice(2, 2))
    assert len(stream) < 9000 and pa.ipc.open_stream(stream).read_all().to_pydict() == {"a": [None, "x"]}
