"""How much memory columnar data will take, before it is taken: pages, buffers and repeated values all say it.

A page of a kilobyte may say that it holds gigabytes, and one long value may be repeated a million times by number.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from hftune.data.readers.base import MAX_RECORD_BYTES, MAX_VALUES

AT_ONCE = 256 << 20
"""Bytes that are decoded at once without asking what they were made of."""
_RATIO = 100
"""Text becomes 3 to 10 times smaller."""
_ROWS_A_BYTE = 100
_HEADER, _MAX_HEADER = 1 << 12, 16 << 20
"""Bytes of a page's header: nearly always, and as far as Arrow goes."""


class Unbounded(Exception):
    """Reading on would take more memory than any true data do."""


def check_size(size: int, file_size: int) -> None:
    """Refuse to decode so many bytes from a file.

    Raises:
        Unbounded: They are too many for the file, or for this machine.
    """
    if size > AT_ONCE and size > _RATIO * file_size:
        raise Unbounded(f"{file_size} bytes say that they hold {size} to be decoded at once")
    if size > AT_ONCE and 2 * size > psutil.virtual_memory().available:
        raise Unbounded(f"{size} bytes are to be decoded at once, which this machine has no memory for")


def check_rows(rows: int, file_size: int) -> None:
    """Refuse a number of rows, or of values in them, that would fill the memory or keep a run busy for ever.

    Raises:
        Unbounded: No file of this size holds so many.
    """
    if rows > MAX_VALUES and rows > _ROWS_A_BYTE * file_size:
        raise Unbounded(f"{file_size} bytes say that they hold {rows} rows or values")


# --- values -----------------------------------------------------------------------------------------------------------


def is_heavy(batch: pa.RecordBatch) -> bool:
    """Whether the rows are too much to be made Python objects at once. The batch must be valid."""
    try:
        sizes = [_weight(column) for column in batch.columns]
    except Unbounded:
        return True
    return sum(size for size, _ in sizes) > MAX_RECORD_BYTES or sum(count for _, count in sizes) > MAX_VALUES


def _weight(array: Any) -> tuple[int, int]:
    """(bytes, values) of an array once each value is an object of its own; at most, where values are repeated."""
    kind, count = array.type, len(array)
    if count > MAX_VALUES:
        raise Unbounded
    if isinstance(array, pa.ExtensionArray):
        return _weight(array.storage)
    if pa.types.is_dictionary(kind):
        size, _ = _weight(array.dictionary)
        longest = _longest(array.dictionary) if size > MAX_RECORD_BYTES // max(1, count) else 0
        return count * longest, count
    if pa.types.is_struct(kind):
        parts = [_weight(part) for part in array.flatten()]
        return sum(size for size, _ in parts), count + sum(number for _, number in parts)
    if _is_list(kind):
        if not pa.types.is_map(kind) and (pc.sum(pc.list_value_length(array)).as_py() or 0) > MAX_VALUES:
            raise Unbounded
        parts = [_weight(part) for part in ((array.keys, array.items) if pa.types.is_map(kind) else [array.flatten()])]
        return sum(size for size, _ in parts), count + sum(number for _, number in parts)
    return (_length(array) if _has_length(kind) else 8 * count), count


def _longest(array: Any) -> int:
    return (pc.max(pc.binary_length(array)).as_py() or 0) if _has_length(array.type) else 16


def _length(array: Any) -> int:
    return pc.sum(pc.binary_length(array)).as_py() or 0


def _has_length(kind: Any) -> bool:
    return any(
        is_one(kind)
        for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _is_list(kind: Any) -> bool:
    names = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view", "is_map")
    return any(getattr(pa.types, name)(kind) for name in names)


# --- Parquet ----------------------------------------------------------------------------------------------------------


def page_bytes(stream: BinaryIO, metadata: Any, group: int) -> int:
    """Bytes that the largest pages and dictionaries of all columns of a row group take together, decoded."""
    total = 0
    for index in range(metadata.num_columns):
        column = metadata.row_group(group).column(index)
        first = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset:
            first = min(first, column.dictionary_page_offset)
        sizes = _pages(stream, first, first + column.total_compressed_size)
        total += sum(heapq.nlargest(2, sizes))
    return total


def _pages(stream: BinaryIO, position: int, end: int) -> Iterator[int]:
    """The decoded size of each page between two places of a file, up to one whose header Arrow cannot read, either."""
    while 0 <= position < end:
        for most in (_HEADER, _MAX_HEADER):
            stream.seek(position)
            header = _Compact(stream.read(most))
            try:
                fields = header.struct()
                decoded, stored = fields[2], fields[3]
                break
            except (IndexError, KeyError, RecursionError):
                continue
        else:
            return
        if decoded < 0 or stored < 0:
            return
        yield decoded
        position += header.position + stored


class _Compact:
    """Thrift's compact protocol, as far as headers of pages need it: numbers by field, all else passed over."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def _byte(self) -> int:
        self.position += 1
        return self.data[self.position - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def struct(self) -> dict[int, int]:
        """The numbers among the fields."""
        found: dict[int, int] = {}
        field = 0
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._zigzag()
            value = self._value(kind & 0x0F)
            if value is not None:
                found[field] = value
        return found

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _value(self, kind: int) -> int | None:
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 3:
            self._byte()
        elif kind == 7:
            self.position += 8
        elif kind == 8:
            length = self._varint()  # moves the position, too
            self.position += length
        elif kind == 12:
            self.struct()
        elif kind in (9, 10):
            self._list()
        elif kind not in (1, 2):
            raise KeyError(kind)
        return None

    def _list(self) -> None:
        head = self._byte()
        count = head >> 4 if head >> 4 != 15 else self._varint()
        for _ in range(count):
            if self.position >= len(self.data):
                raise IndexError
            # In lists a bool is a byte.
            self._value(3 if head & 0x0F in (1, 2) else head & 0x0F)


# --- Arrow ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """A table of FlatBuffers."""

    data: bytes
    place: int

    def field(self, number: int) -> int | None:
        """Where the value of a field is; None where it has none."""
        vtable = self.place - self._number("<i", self.place)
        if 4 + 2 * number >= self._number("<H", vtable):
            return None
        offset = self._number("<H", vtable + 4 + 2 * number)
        return self.place + offset if offset else None

    def child(self, number: int) -> _Table | None:
        """The table that a field leads to."""
        place = self.field(number)
        return None if place is None else _Table(self.data, place + self._number("<I", place))

    def structs(self, number: int, form: str) -> list[tuple[int, ...]]:
        """The structs of a vector."""
        place = self.field(number)
        if place is None:
            return []
        start = place + self._number("<I", place)
        count, size = self._number("<I", start), struct.calcsize(form)
        if start + 4 + count * size > len(self.data):
            raise struct.error("a vector leads out of its table")
        return list(struct.iter_unpack(form, self.data[start + 4 : start + 4 + count * size]))

    def _number(self, form: str, place: int) -> int:
        if place < 0:
            raise struct.error("a place before the beginning")
        return int(struct.unpack_from(form, self.data, place)[0])


_RECORD_BATCH, _DICTIONARY = 3, 2


def check_arrow(stream: BinaryIO, is_file: bool, file_size: int) -> None:
    """Refuse an Arrow file or stream of which a batch would take more memory than it may.

    Raises:
        Unbounded: By the sizes that compressed buffers say they have, or its number of rows.
    """
    try:
        for place in _blocks(stream, file_size) if is_file else _messages(stream):
            _check_message(stream, place, file_size)
    except struct.error:
        return  # damaged; Arrow says what is wrong


def _blocks(stream: BinaryIO, file_size: int) -> Iterator[int]:
    """Where the footer of a file says that its dictionaries and batches are."""
    stream.seek(file_size - 10)
    (size,) = struct.unpack("<i", stream.read(4))
    if not 0 < size <= file_size - 10:
        return
    stream.seek(file_size - 10 - size)
    data = stream.read(size)
    footer = _Table(data, struct.unpack_from("<I", data)[0])
    for field in (2, 3):
        for offset, _, _, _ in footer.structs(field, "<qiiq"):
            yield offset


def _messages(stream: BinaryIO) -> Iterator[int]:
    """Where each message of a stream begins."""
    place = 0
    while True:
        yield place
        table, body = _message(stream, place)
        if table is None:
            return
        length = table.field(3)
        place = body + (struct.unpack_from("<q", table.data, length)[0] if length is not None else 0)


def _message(stream: BinaryIO, place: int) -> tuple[_Table | None, int]:
    """The message at a place, and where its body begins; None at the end."""
    if place < 0:
        raise struct.error("a place before the beginning")
    stream.seek(place)
    head = stream.read(8)
    if len(head) < 8:
        return None, 0
    mark, size = struct.unpack("<Ii", head)
    begin = place + 8
    if mark != 0xFFFFFFFF:  # before Arrow 0.15 there was no mark
        size, begin = mark, place + 4
    if not 0 < size <= 1 << 30:
        return None, 0
    stream.seek(begin)
    data = stream.read(size)
    return _Table(data, struct.unpack_from("<I", data)[0]), begin + size


def _check_message(stream: BinaryIO, place: int, file_size: int) -> None:
    table, body = _message(stream, place)
    kind = None if table is None else table.field(1)
    if table is None or kind is None:
        return
    batch = table.child(2)
    if batch is not None and table.data[kind] == _DICTIONARY:
        batch = batch.child(1)
    elif table.data[kind] != _RECORD_BATCH:
        return
    if batch is None:
        return
    length = batch.field(0)
    check_rows(0 if length is None else struct.unpack_from("<q", batch.data, length)[0], file_size)
    if batch.child(3) is None:  # not compressed: no buffer is larger than the file
        return
    total = 0
    for offset, size in batch.structs(2, "<qq"):
        if size > 0:
            stream.seek(body + offset)
            total += max(0, struct.unpack("<q", stream.read(8))[0])
    check_size(total, file_size)
