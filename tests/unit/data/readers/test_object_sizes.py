"""What Arrow's values take as Python objects, before they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from hftune.data.readers.object_sizes import is_too_large, without_dictionaries
from tests.unit.data.readers.test_columnar_limits import MIB

HEAVY: dict[str, Callable[[], Any]] = {
    "long text": lambda: pa.array(["x" * (65 * MIB)]),
    "repeated": lambda: pa.DictionaryArray.from_arrays([0] * 100, pa.array(["x" * MIB])),
    "repeated in a list": lambda: pa.ListArray.from_arrays(
        [0, 100], pa.DictionaryArray.from_arrays([0] * 100, pa.array(["x" * MIB]))
    ),
    "repeated, of one length": lambda: pa.DictionaryArray.from_arrays(
        [0] * 100, pa.array([b"x" * MIB], pa.binary(MIB))
    ),
    "repeated lists": lambda: pa.DictionaryArray.from_arrays([0] * 100, pa.array([[0] * 100_000])),
    "repeated views": lambda: pa.DictionaryArray.from_arrays([0] * 100, pa.array(["x" * MIB], pa.string_view())),
    "views": lambda: pa.array(["y", "x" * (65 * MIB)], pa.string_view()),
    "fixed": lambda: pa.array([b"x" * (33 * MIB)] * 2, pa.binary(33 * MIB)),
    "run": lambda: pa.RunEndEncodedArray.from_arrays([100], ["x" * MIB]),
    "union": lambda: pa.UnionArray.from_dense(
        pa.array([0] * 100, pa.int8()), pa.array([0] * 100, pa.int32()), [pa.array(["x" * MIB])]
    ),
    "in an extension": lambda: pa.ExtensionArray.from_storage(pa.json_(), pa.array(["x" * (65 * MIB)])),
    "nulls": lambda: pa.nulls(5 * MIB),
    "nulls in a list": lambda: pa.ListArray.from_arrays([0, 5 * MIB], pa.nulls(5 * MIB)),
    "lists over each other": lambda: pa.ListViewArray.from_arrays([0] * 100, [MIB] * 100, pa.nulls(MIB)),
    "in an object": lambda: pa.StructArray.from_arrays([pa.array(["x" * (65 * MIB)])], ["a"]),
    "in a map": lambda: pa.MapArray.from_arrays([0, 1], pa.array(["k"]), pa.array(["x" * (65 * MIB)])),
}


LIGHT: dict[str, Callable[[], Any]] = {
    "texts": lambda: pa.array(["x" * MIB] * 60),
    "repeated": lambda: pa.DictionaryArray.from_arrays([0] * 1000, pa.array(["user"])),
    "one of many": lambda: pa.array(["x" * MIB] * 100).slice(3, 2),
    "lists of a slice": lambda: pa.ListArray.from_arrays([0, 1, 5 * MIB], pa.nulls(5 * MIB)).slice(0, 1),
    "messages": lambda: pa.array([[{"role": "user", "content": "x" * 100}] * 10] * 100),
    "repeated numbers": lambda: pa.DictionaryArray.from_arrays([0] * 1000, pa.array(range(10_000))),
    "one of many views": lambda: pa.array(["x" * (65 * MIB), "y"], pa.string_view()).slice(1, 1),
    "maps of a slice": lambda: pa.MapArray.from_arrays(
        [0, 1, 3 * MIB], pa.nulls(3 * MIB, pa.int8()).fill_null(0), pa.nulls(3 * MIB)
    ).slice(0, 1),
    "numbers": lambda: pa.array([1.5, None]),
    "views": lambda: pa.array(["x", None], pa.string_view()),
    "fixed": lambda: pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
}


@pytest.mark.parametrize(("make", "heavy"), [(a, True) for a in HEAVY.values()] + [(a, False) for a in LIGHT.values()])
def test_what_is_too_much_for_python(make: Callable[[], Any], heavy: bool) -> None:
    assert is_too_large(pa.RecordBatch.from_arrays([make()], ["a"])) is heavy


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
