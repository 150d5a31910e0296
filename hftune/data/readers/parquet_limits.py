"""How much memory a row group of a Parquet file will take, before it is taken: the headers of its pages say it."""

from __future__ import annotations

import heapq
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

# Bytes of a page's header: nearly always, and as far as Arrow goes.
_HEADER, _MAX_HEADER = 1 << 12, 16 << 20
# A kind of page, and encodings: by number in the dictionary, or by what a value shares with the one before.
_DICTIONARY_PAGE, _BY_NUMBER, _BY_PREFIX = 2, (2, 8), 7
# Bytes of levels, offsets and numbers, at most, that a value takes on top of its own.
_A_VALUE = 32
_LONG_DICTIONARY = 4 << 20
# Three bytes of a footer may describe a column, of which Arrow remembers a thousand.
_LONG_FOOTER = 1 << 20


@dataclass(frozen=True, slots=True)
class Page:
    """A page's header: where its data begin, their size there and decoded, and its values."""

    kind: int
    place: int
    stored: int
    decoded: int
    values: int
    encoding: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a row group.

    `pages`: what the largest pages and dictionaries of all columns take together, decoded. `row`: what the largest row
    may take beyond that: the values of a list may all be in one row.
    """

    pages: int
    row: int


def has_long_footer(stream: BinaryIO) -> bool:
    """Whether the description of a Parquet file is longer than usual."""
    stream.seek(0, os.SEEK_END)
    stream.seek(max(0, stream.tell() - 8))
    return int.from_bytes(stream.read(4), "little") > _LONG_FOOTER


def group_sizes(stream: BinaryIO, source: Any, group: int) -> Sizes:
    """What the pages of a row group say; `source` is the `ParquetFile`."""
    total = row = 0
    for index in range(source.metadata.num_columns):
        column = source.metadata.row_group(group).column(index)
        found = list(_pages(stream, column))
        # A data page and the dictionary that it refers to are decoded at the same time.
        total += sum(heapq.nlargest(2, (page.decoded for page in found)))
        kind = source.schema.column(index)
        # A column of lists: nothing bounds how many values a row has but the number of all.
        if kind.max_repetition_level:
            row += _all_values(found, _longest(stream, column, kind, found))
        else:
            row += _A_VALUE * max((page.values for page in found), default=0)  # some encodings are read a page at once
    return Sizes(total, row)


def _all_values(pages: list[Page], longest: int) -> int:
    """Bytes that all values of a column take, at most: a list may have all of them in one row."""
    total = 0
    for page in pages:
        total += page.decoded + _A_VALUE * page.values
        if page.encoding == _BY_PREFIX:
            total += page.values * page.decoded
        # Each value may be the longest one of the dictionary, for less than a bit in the file.
        elif page.encoding in _BY_NUMBER and page.kind != _DICTIONARY_PAGE:
            total += page.values * longest
    return total


def _longest(stream: BinaryIO, column: Any, kind: Any, pages: list[Page]) -> int:
    """Bytes of the longest value in a column's dictionary, at most."""
    if column.physical_type != "BYTE_ARRAY":
        return max(8, kind.length or 0)
    dictionaries = [page for page in pages if page.kind == _DICTIONARY_PAGE]
    return max((_longest_text(stream, column.compression, page) for page in dictionaries), default=0)


def _longest_text(stream: BinaryIO, compression: str, page: Page) -> int:
    # Not looked into: the whole dictionary is the bound then.
    if page.decoded > _LONG_DICTIONARY or page.stored > _LONG_DICTIONARY:
        return page.decoded
    stream.seek(page.place)
    data = stream.read(page.stored)
    try:
        if compression != "UNCOMPRESSED":
            codec = {"LZ4": "lz4_raw"}.get(compression, compression.lower())
            data = pa.Codec(codec).decompress(data, page.decoded).to_pybytes()
        longest = place = 0
        while place < len(data):
            (length,) = struct.unpack_from("<I", data, place)
            longest, place = max(longest, length), place + 4 + length
    except (pa.ArrowException, OSError, ValueError, struct.error):
        return page.decoded
    return longest


def _pages(stream: BinaryIO, column: Any) -> Iterator[Page]:
    """The pages of a column in a row group, up to one whose header Arrow cannot read, either."""
    position = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        position = min(position, column.dictionary_page_offset)
    end = position + column.total_compressed_size
    while 0 <= position < end:
        # Headers hold statistics, which may be as long as a value; nearly all are short.
        for most in (_HEADER, _MAX_HEADER):
            stream.seek(position)
            header = ThriftCompact(stream.read(most))
            try:
                page = _page(header, position)
                break
            except (IndexError, KeyError, AttributeError, RecursionError):
                continue
        else:
            return
        # Sizes are signed numbers in the file; a negative one would send the walk back to where it was.
        if page.decoded < 0 or page.stored < 0:
            return
        yield page
        position = page.place + page.stored


def _page(header: ThriftCompact, position: int) -> Page:
    fields = header.struct()
    # A data page of version 1, a dictionary, a data page of version 2: each says its values first, and the encoding.
    of_kind = {5: 2, 7: 2, 8: 4}
    field = next((field for field in of_kind if field in fields), 0)
    details: dict[int, int] = fields.get(field, {})
    values, encoding = max(0, details.get(1, 0)), details.get(of_kind.get(field, 0), 0)
    return Page(fields[1], position + header.position, fields[3], fields[2], values, encoding)


class ThriftCompact:
    """Thrift's compact protocol, as far as headers of pages need it: numbers and structs by field, no more."""

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

    def struct(self) -> dict[int, Any]:
        """The fields that are numbers or structs."""
        found: dict[int, Any] = {}
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

    def _value(self, kind: int) -> Any:
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
            return self.struct()
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
