"""Sizes are read from the files themselves, as pyarrow writes them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hftune.data.readers import columnar_limits
from hftune.data.readers.columnar_limits import Unbounded, check_arrow, check_rows, check_size, is_heavy, page_bytes

MIB = 1 << 20


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_of_a_known_size(version: str, codec: str, dictionary: bool) -> None:
    text = pa.array([f"{number:06}" * 1000 for number in range(100)])
    sink = io.BytesIO()
    options: dict[str, Any] = {"use_dictionary": dictionary, "compression": codec, "data_page_version": version}
    pq.write_table(pa.table({"text": text, "n": [[1, None]] * 100}), sink, data_page_size=10 * MIB, **options)
    found = page_bytes(sink, pq.ParquetFile(sink).metadata, 0)
    assert 600_000 < found < 620_000, "100 texts of 6,000 characters, and little else"


def test_the_largest_pages_count_and_not_all() -> None:
    sink = io.BytesIO()
    text = pa.array(["abcdef" * 1000] * 1000)
    pq.write_table(pa.table({"text": text}), sink, use_dictionary=False, data_page_size=100_000, write_batch_size=1)
    assert 200_000 < page_bytes(sink, pq.ParquetFile(sink).metadata, 0) < 250_000


def test_sizes_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_size(256 * MIB, 1)
    check_size(300 * MIB, 4 * MIB)
    with pytest.raises(Unbounded, match="bytes say that they hold"):
        check_size(300 * MIB, 2 * MIB)
    memory = type("Memory", (), {"available": 500 * MIB})
    monkeypatch.setattr(columnar_limits.psutil, "virtual_memory", lambda: memory)
    check_size(256 * MIB, 1)
    with pytest.raises(Unbounded, match="no memory for"):
        check_size(300 * MIB, 300 * MIB)


def test_rows_that_are_refused() -> None:
    check_rows(4 * MIB, 1)
    check_rows(100_000_000, 1_000_000)
    with pytest.raises(Unbounded):
        check_rows(100_000_001, 1_000_000)


HEAVY = {
    "long text": pa.array(["x" * (65 * MIB)]),
    "many numbers": pa.array([[0]] * 2).take(pa.array([0])).flatten().take(pa.array([0])),
    "repeated": pa.DictionaryArray.from_arrays([0] * 100, pa.array(["x" * MIB])),
    "repeated in a list": pa.ListArray.from_arrays(
        [0, 100], pa.DictionaryArray.from_arrays([0] * 100, pa.array(["x" * MIB]))
    ),
    "nulls": pa.nulls(5 * MIB),
    "nulls in a list": pa.ListArray.from_arrays([0, 5 * MIB], pa.nulls(5 * MIB)),
    "lists over each other": pa.ListViewArray.from_arrays([0] * 100, [MIB] * 100, pa.nulls(MIB)),
    "in an object": pa.StructArray.from_arrays([pa.array(["x" * (65 * MIB)])], ["a"]),
    "in a map": pa.MapArray.from_arrays([0, 1], pa.array(["k"]), pa.array(["x" * (65 * MIB)])),
}
del HEAVY["many numbers"]
LIGHT = {
    "texts": pa.array(["x" * MIB] * 60),
    "repeated": pa.DictionaryArray.from_arrays([0] * 1000, pa.array(["user"])),
    "one of many": pa.array(["x" * MIB] * 100).slice(3, 2),
    "lists of a slice": pa.ListArray.from_arrays([0, 1, 5 * MIB], pa.nulls(5 * MIB)).slice(0, 1),
    "messages": pa.array([[{"role": "user", "content": "x" * 100}] * 10] * 100),
    "numbers": pa.array([1.5, None]),
    "views": pa.array(["x", None], pa.string_view()),
    "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
}


@pytest.mark.parametrize(("array", "heavy"), [(a, True) for a in HEAVY.values()] + [(a, False) for a in LIGHT.values()])
def test_what_is_too_much_for_python(array: Any, heavy: bool) -> None:
    assert is_heavy(pa.RecordBatch.from_arrays([array], ["a"])) is heavy


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_compressed_buffers_say_their_size(
    monkeypatch: pytest.MonkeyPatch, new: Any, codec: str, dictionary: bool
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(columnar_limits, "check_size", lambda size, _: sizes.append(size))
    text = pa.array(["x" * 5000] * 20)
    array = text.dictionary_encode() if dictionary else text
    sink = io.BytesIO()
    with new(sink, pa.schema({"a": array.type}), options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for _ in range(2):
            writer.write_batch(pa.RecordBatch.from_arrays([array], ["a"]))
    check_arrow(sink, new is pa.ipc.new_file, len(sink.getvalue()))
    largest = 5000 if dictionary else 100_000
    assert len(sizes) == (3 if dictionary else 2) and largest <= max(sizes) < largest + 500
