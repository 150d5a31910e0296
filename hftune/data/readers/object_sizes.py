"""How much memory Arrow's values take once they are Python objects: one long value may be repeated a million times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hftune.data.readers.base import MAX_RECORD_BYTES, MAX_VALUES

_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class _TooLarge(Exception):
    """Enough has been counted."""


def is_too_large(batch: pa.RecordBatch) -> bool:
    """Whether the rows are too much to be made Python objects at once. The batch must be valid."""
    try:
        # By Arrow's own arithmetic on offsets, without making a single Python object.
        sizes = [_size(column) for column in batch.columns]
    except _TooLarge:
        return True
    return sum(size for size, _ in sizes) > MAX_RECORD_BYTES or sum(count for _, count in sizes) > MAX_VALUES


def _size(array: Any) -> tuple[int, int]:
    """(bytes, values) of an array once each value is an object of its own; at most, where values are repeated."""
    kind, count = array.type, len(array)
    if count > MAX_VALUES:
        raise _TooLarge
    if isinstance(array, pa.ExtensionArray):
        return _size(array.storage)
    if pa.types.is_dictionary(kind):
        return _repeated(array.dictionary, count)
    if pa.types.is_run_end_encoded(kind):
        return _repeated(array.values, count)
    if pa.types.is_union(kind):
        return _total(count, [_repeated(array.field(index), count) for index in range(kind.num_fields)])
    if pa.types.is_struct(kind):
        return _total(count, [_size(part) for part in array.flatten()])
    if pa.types.is_map(kind):
        # The children of a slice are those of the whole array.
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return _total(count, [_size(part.slice(first, last - first)) for part in (array.keys, array.items)])
    if _is_list(kind):
        if (pc.sum(pc.list_value_length(array)).as_py() or 0) > MAX_VALUES:
            raise _TooLarge  # lists may lie over each other: flattened, they would take more than the file
        return _total(count, [_size(array.flatten())])
    lengths = _lengths(array)
    return (8 * count if lengths is None else pc.sum(lengths).as_py() or 0), count


def _total(count: int, parts: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(size for size, _ in parts), count + sum(number for _, number in parts)


def _repeated(values: Any, count: int) -> tuple[int, int]:
    """At most, for `count` values that are each one of some."""
    lengths = _lengths(values)
    if lengths is not None:
        return count * (pc.max(lengths).as_py() or 0), count
    if pa.types.is_primitive(values.type):
        return 8 * count, count
    size, number = _size(values)  # one of them may have all of it
    return count * size, count * max(1, number)


def _lengths(array: Any) -> Any:
    """Bytes of each value; None for those of some bytes, and for those that are made of others."""
    kind = array.type
    if kind in _VIEWS:
        views = np.frombuffer(
            array.buffers()[1] or b"", np.int32
        )  # four numbers each, of which the first is the length
        return pa.array(views[4 * array.offset : 4 * (array.offset + len(array)) : 4].clip(0), pa.int64())
    if pa.types.is_fixed_size_binary(kind):
        return pa.array(np.full(len(array), kind.byte_width), pa.int64())
    has_length = ("is_string", "is_large_string", "is_binary", "is_large_binary")
    is_one = any(getattr(pa.types, name)(kind) for name in has_length)
    return pc.cast(pc.binary_length(array), pa.int64()) if is_one else None


def _is_list(kind: Any) -> bool:
    names = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
    return any(getattr(pa.types, name)(kind) for name in names)


# --- each value by itself ---------------------------------------------------------------------------------------------


def without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same values without dictionaries and views. The batch must not be heavy.

    A slice of a batch that is written or sent takes its whole dictionary along, and all that its views may show.
    """
    kinds = [_without_dictionaries(field.type) for field in batch.schema]
    fields = [field.with_type(kind) for field, kind in zip(batch.schema, kinds, strict=True)]
    if all(field.type == kind for field, kind in zip(batch.schema, kinds, strict=True)):
        return batch
    try:
        return batch.cast(pa.schema(fields, batch.schema.metadata))
    except pa.ArrowNotImplementedError:
        return batch  # a dictionary of lists


def _without_dictionaries(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return _without_dictionaries(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_dictionaries(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_dictionaries(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_dictionaries(kind.value_type)))
    return _VIEWS.get(kind, kind)
