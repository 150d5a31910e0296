"""Tokens are gathered from Arrow's buffers, over the borders of its chunks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, Sequence, Value, concatenate_datasets

from hftune.data.packing.int_columns import IntColumn
from tests.unit.data.helpers import to_dataset


def test_segments_of_several_chunks() -> None:
    parts = [to_dataset({"input_ids": ids}) for ids in ([[1, 2, 3], []], [[4, 5], [6, 7, 8, 9]])]
    column = IntColumn(concatenate_datasets(parts), "input_ids")
    assert column.lengths.tolist() == [3, 0, 2, 4]
    found = column.gather(np.array([3, 0, 2]), np.array([1, 0, 1]), np.array([2, 3, 1]))
    assert found.tolist() == [7, 8, 1, 2, 3, 5] and found.dtype == np.int32


def test_a_slice_of_a_file_begins_where_it_begins() -> None:
    """Arrow's offsets of a slice do not begin at 0."""
    table = to_dataset({"input_ids": [[1, 2], [3], [4, 5, 6]]}).data.table.slice(1, 2)
    column = IntColumn(type(to_dataset({}))(table), "input_ids")
    assert column.lengths.tolist() == [1, 3]
    assert column.gather(np.array([0, 1]), np.array([0, 1]), np.array([1, 2])).tolist() == [3, 5, 6]


def test_values_keep_their_type() -> None:
    """What is gathered is not widened, nor cut."""
    long = 2**40
    column = IntColumn(Dataset.from_dict({"n": [[long], [2]]}, Features({"n": Sequence(Value("int64"))})), "n")
    found = column.gather(np.array([1, 0]), np.array([0, 0]), np.array([1, 1]))
    assert found.tolist() == [2, long] and found.dtype == np.int64


def test_a_column_of_nothing() -> None:
    empty = np.zeros(0, dtype=np.int64)
    table = to_dataset({"input_ids": [[1]]}).data.table
    no_chunks = type(to_dataset({}))(pa.table({"input_ids": pa.chunked_array([], table.schema.field(0).type)}))
    assert not no_chunks.data.column("input_ids").chunks
    for dataset in (to_dataset({"input_ids": [[1]]}).select([]), no_chunks):
        column = IntColumn(dataset, "input_ids")
        for found in (column.lengths, column.begin, column.chunk):
            assert found.tolist() == [] and found.dtype == np.int64, "with which one can count"
        assert column.gather(empty, empty, empty).dtype == np.int32
