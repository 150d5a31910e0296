"""What the pages of Parquet files say of their size."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hftune.data.readers.parquet_limits import group_sizes, has_long_footer
from tests.unit.data.readers.test_columnar_limits import MIB
from tests.unit.data.readers.test_parquet_probe import NESTED


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
