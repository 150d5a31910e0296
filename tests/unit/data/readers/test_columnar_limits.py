"""Sizes are read from the files themselves, as pyarrow writes them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hftune.data.readers import arrow_limits, columnar, columnar_limits
from hftune.data.readers.arrow_limits import check_arrow
from hftune.data.readers.columnar import parquet_chunks
from hftune.data.readers.columnar_limits import HARD_LIMIT, TooMuchMemory, check_rows, check_size
from hftune.data.readers.object_sizes import is_too_large, without_dictionaries
from hftune.data.readers.parquet_limits import group_sizes, has_long_footer
from hftune.data.readers.parquet_probe import MemoryProbe

MIB = 1 << 20


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_of_a_known_size(version: str, codec: str, dictionary: bool) -> None:
    text = pa.array([f"{number:06}" * 1000 for number in range(100)])
    sink = io.BytesIO()
    options: dict[str, Any] = {"use_dictionary": dictionary, "compression": codec, "data_page_version": version}
    pq.write_table(pa.table({"text": text, "n": [[1, None]] * 100}), sink, data_page_size=10 * MIB, **options)
    found = group_sizes(sink, pq.ParquetFile(sink), 0).pages
    assert 600_000 < found < 620_000, "100 texts of 6,000 characters, and little else"


def test_the_largest_pages_count_and_not_all() -> None:
    sink = io.BytesIO()
    text = pa.array(["abcdef" * 1000] * 1000)
    pq.write_table(pa.table({"text": text}), sink, use_dictionary=False, data_page_size=100_000, write_batch_size=1)
    assert 200_000 < group_sizes(sink, pq.ParquetFile(sink), 0).pages < 250_000


def test_sizes_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_size(256 * MIB, 1)
    check_size(300 * MIB, 4 * MIB)
    with pytest.raises(TooMuchMemory, match="bytes say that they hold"):
        check_size(300 * MIB, 2 * MIB)
    check_size(HARD_LIMIT, HARD_LIMIT)
    with pytest.raises(TooMuchMemory, match="at most"):
        check_size(HARD_LIMIT + 1, HARD_LIMIT)
    memory = type("Memory", (), {"available": 500 * MIB})
    monkeypatch.setattr(columnar_limits.psutil, "virtual_memory", lambda: memory)
    check_size(256 * MIB, 1)
    with pytest.raises(TooMuchMemory, match="no memory for"):
        check_size(300 * MIB, 300 * MIB)


def test_rows_that_are_refused() -> None:
    check_rows(4 * MIB, 1)
    check_rows(100_000_000, 1_000_000)
    with pytest.raises(TooMuchMemory):
        check_rows(100_000_001, 1_000_000)


NESTED = pa.array([["x" * 1000] * 90 + ["y" * 3000] * 10] * 10)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "zstd", "snappy", "gzip", "brotli", "lz4"])
def test_values_of_lists_may_all_be_in_one_row(version: str, codec: str) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": NESTED}), sink, compression=codec, data_page_version=version)
    row = group_sizes(sink, pq.ParquetFile(sink), 0).row
    # A thousand values, of which each may be the longest of the dictionary, and some bytes a value beside.
    assert 3_000_000 < row < 3_100_000


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({}, 1_200_000, 1_300_000),  # each value once
        ({"column_encoding": {"a.list.element": "DELTA_BYTE_ARRAY"}}, 40_000_000, 50_000_000),  # a page has 43,000
    ],
)
def test_values_of_lists_in_other_encodings(options: dict[str, Any], least: int, most: int) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": NESTED}), sink, use_dictionary=False, **options)
    assert least < group_sizes(sink, pq.ParquetFile(sink), 0).row < most


def test_values_of_one_length_and_long_dictionaries() -> None:
    sink = io.BytesIO()
    fixed = pa.array([[b"x" * 500] * 100] * 10, pa.list_(pa.binary(500)))
    pq.write_table(pa.table({"a": fixed}), sink, store_schema=False)
    assert 500_000 < group_sizes(sink, pq.ParquetFile(sink), 0).row < 600_000
    sink = io.BytesIO()
    long = pa.array([["x" * (3 * MIB), "y" * (3 * MIB)]])
    pq.write_table(pa.table({"a": long}), sink, dictionary_pagesize_limit=10 * MIB)
    assert group_sizes(sink, pq.ParquetFile(sink), 0).row > 12 * MIB, "not looked into: each as long as all of it"


def test_values_without_lists_take_their_levels() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": ["x" * 1000] * 1000}), sink)
    assert 32_000 <= group_sizes(sink, pq.ParquetFile(sink), 0).row < 33_000


def test_long_footers() -> None:
    for columns, is_long in ((10, False), (10_000, True)):
        sink = io.BytesIO()
        pq.write_table(pa.table({f"c{number}": [1] for number in range(columns)}), sink)
        assert has_long_footer(sink) is is_long


def test_a_trial_reads_what_fits_and_refuses_what_does_not(tmp_path: Path) -> None:
    good, bad, broken = (tmp_path / name for name in ("good.parquet", "bad.parquet", "broken.parquet"))
    pq.write_table(pa.table({"a": NESTED}), good, row_group_size=5)
    value = pa.DictionaryArray.from_arrays([0] * 2000, pa.array(["x" * MIB]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2000], pa.int32()), value)
    pq.write_table(pa.table({"a": lists}), bad, row_group_size=1, store_schema=False)
    broken.write_bytes(good.read_bytes()[100:])
    with MemoryProbe(good) as probe:
        for group in (0, 1):
            probe.read(group, 3)
    with MemoryProbe(bad) as probe:
        probe.read(0, 1)
        with pytest.raises(TooMuchMemory, match="once it is decoded"):
            probe.read(1, 1)
    with MemoryProbe(broken) as probe:
        probe.read(0, 1)  # whoever reads it says what is wrong
        probe.read(1, 1)
    assert probe.process is not None and probe.process.returncode is not None


def test_a_trial_is_made_where_a_row_may_be_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(MemoryProbe, "open", lambda probe: tried.append("open"))
    monkeypatch.setattr(MemoryProbe, "read", lambda probe, group, rows: tried.append((group, rows)))
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": NESTED}), file, row_group_size=5)
    assert len(list(parquet_chunks(file, 256))) == 2 and not tried
    monkeypatch.setattr(columnar, "SOFT_LIMIT", 1_000_000)
    # 1.5 million bytes, of five rows: 8 times the average of 300,000 is more than 1,000,000.
    assert len(list(parquet_chunks(file, 256))) == 10 and tried == [(0, 1), (1, 1)]
    monkeypatch.setattr(columnar, "has_long_footer", lambda stream: True)
    list(parquet_chunks(file, 256))
    assert tried[2] == "open"


def test_large_pages_are_tried_without_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(MemoryProbe, "read", lambda probe, group, rows: tried.append(group))
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": ["x" * 1000] * 100}), file, use_dictionary=False)
    for at_once, expected in ((250_000, []), (150_000, [0])):  # one page of 100,000 bytes
        monkeypatch.setattr(columnar, "SOFT_LIMIT", at_once)
        list(parquet_chunks(file, 256))
        assert tried == expected


HEAVY = {
    "long text": pa.array(["x" * (65 * MIB)]),
    "many numbers": pa.array([[0]] * 2).take(pa.array([0])).flatten().take(pa.array([0])),
    "repeated": pa.DictionaryArray.from_arrays([0] * 100, pa.array(["x" * MIB])),
    "repeated in a list": pa.ListArray.from_arrays(
        [0, 100], pa.DictionaryArray.from_arrays([0] * 100, pa.array(["x" * MIB]))
    ),
    "repeated, of one length": pa.DictionaryArray.from_arrays([0] * 100, pa.array([b"x" * MIB], pa.binary(MIB))),
    "repeated lists": pa.DictionaryArray.from_arrays([0] * 100, pa.array([[0] * 100_000])),
    "repeated views": pa.DictionaryArray.from_arrays([0] * 100, pa.array(["x" * MIB], pa.string_view())),
    "views": pa.array(["y", "x" * (65 * MIB)], pa.string_view()),
    "fixed": pa.array([b"x" * (33 * MIB)] * 2, pa.binary(33 * MIB)),
    "run": pa.RunEndEncodedArray.from_arrays([100], ["x" * MIB]),
    "union": pa.UnionArray.from_dense(
        pa.array([0] * 100, pa.int8()), pa.array([0] * 100, pa.int32()), [pa.array(["x" * MIB])]
    ),
    "in an extension": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["x" * (65 * MIB)])),
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
    "repeated numbers": pa.DictionaryArray.from_arrays([0] * 1000, pa.array(range(10_000))),
    "one of many views": pa.array(["x" * (65 * MIB), "y"], pa.string_view()).slice(1, 1),
    "maps of a slice": pa.MapArray.from_arrays(
        [0, 1, 3 * MIB], pa.nulls(3 * MIB, pa.int8()).fill_null(0), pa.nulls(3 * MIB)
    ).slice(0, 1),
    "numbers": pa.array([1.5, None]),
    "views": pa.array(["x", None], pa.string_view()),
    "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
}


@pytest.mark.parametrize(("array", "heavy"), [(a, True) for a in HEAVY.values()] + [(a, False) for a in LIGHT.values()])
def test_what_is_too_much_for_python(array: Any, heavy: bool) -> None:
    assert is_too_large(pa.RecordBatch.from_arrays([array], ["a"])) is heavy


def test_rows_of_several_columns_count_together() -> None:
    each = pa.DictionaryArray.from_arrays([0], pa.array(["x" * (4 * MIB)]))
    columns = [each] * 20
    names = [str(number) for number in range(20)]
    assert is_too_large(pa.RecordBatch.from_arrays(columns, names))
    assert not is_too_large(pa.RecordBatch.from_arrays(columns[:10], names[:10]))


DICTIONARY = pa.array(["x", "y", None, "x"]).dictionary_encode()


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (DICTIONARY, pa.string()),
        (pa.array(["x", None], pa.string_view()), pa.large_string()),
        (pa.array([b"x", None], pa.binary_view()), pa.large_binary()),
        (pa.ListArray.from_arrays([0, 3, 4], DICTIONARY), pa.list_(pa.string())),
        (pa.LargeListArray.from_arrays([0, 3, 4], DICTIONARY), pa.large_list(pa.string())),
        (pa.StructArray.from_arrays([DICTIONARY], ["a"]), pa.struct([("a", pa.string())])),
        (pa.array([1, 2]), pa.int64()),
        (pa.DictionaryArray.from_arrays([0, 0], pa.array([[1]])), pa.dictionary(pa.int64(), pa.list_(pa.int64()))),
    ],
)
def test_each_value_by_itself(array: Any, kind: Any) -> None:
    batch = pa.RecordBatch.from_arrays([array], ["a"])
    found = without_dictionaries(batch)
    assert found.schema.field("a").type == kind and found.to_pylist() == batch.to_pylist()


def test_the_largest_batch_that_is_not_compressed_and_dictionaries_together(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema({"a": pa.string(), "b": pa.dictionary(pa.int32(), pa.string())})
    repeated = pa.array(["x" * 9000] * 20).dictionary_encode()
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        sink = io.BytesIO()
        with new(sink, schema) as writer:
            for count in (20, 10):
                text = pa.array(["x" * 5000] * count)
                writer.write_batch(pa.RecordBatch.from_arrays([text, repeated[:count]], schema=schema))
        assert 100_000 < check_arrow(sink, new is pa.ipc.new_file, len(sink.getvalue())) < 101_000
    monkeypatch.setattr(columnar_limits, "SOFT_LIMIT", 15_000)
    monkeypatch.setattr(columnar_limits, "_RATIO", 0)
    table = pa.table({name: repeated for name in "ab"})
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(TooMuchMemory, match=r"18\d{3} to be decoded"):
        check_arrow(sink, True, len(sink.getvalue()))


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_compressed_buffers_say_their_size(
    monkeypatch: pytest.MonkeyPatch, new: Any, codec: str, dictionary: bool
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(arrow_limits, "check_size", lambda size, _: sizes.append(size))
    text = pa.array(["x" * 5000] * 20)
    array = text.dictionary_encode() if dictionary else text
    sink = io.BytesIO()
    with new(sink, pa.schema({"a": array.type}), options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for _ in range(2):
            writer.write_batch(pa.RecordBatch.from_arrays([array], ["a"]))
    check_arrow(sink, new is pa.ipc.new_file, len(sink.getvalue()))
    largest = 5000 if dictionary else 100_000
    assert len(sizes) == (3 if dictionary else 2) and largest <= max(sizes) < largest + 500
