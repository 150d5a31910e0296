"""How much memory the batches of Arrow files and streams will take, before it is taken: the buffers say it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from hftune.data.readers.columnar_limits import check_rows, check_size


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

    def number(self, number: int, form: str) -> int:
        """A field that is a number; 0 where it has none."""
        place = self.field(number)
        return 0 if place is None else self._number(form, place)

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


def check_arrow(stream: BinaryIO, is_file: bool, file_size: int) -> int:
    """Bytes of the largest batch that is not compressed.

    Raises:
        TooMuchMemory: A batch, or all dictionaries together, would take more memory than they may, by the sizes that
            compressed buffers say they have; or a batch has too many rows.
    """
    largest = dictionaries = 0
    try:
        # Files name their batches in a footer; streams have to be walked from message to message.
        for place in _blocks(stream, file_size) if is_file else _messages(stream):
            batch, is_dictionary, body = _batch(stream, place)
            if batch is None:
                continue
            check_rows(batch.number(0, "<q"), file_size)
            size = _buffers(stream, batch, body)
            # Not compressed: the file has as many bytes as the batch takes, and a memory map holds them for nothing.
            if batch.child(3) is None and not is_dictionary:
                largest = max(largest, size)
                continue
            # All of them are kept to the end; batches go one by one.
            dictionaries += size if is_dictionary else 0
            check_size(max(size, dictionaries), file_size)
    except struct.error:
        pass  # damaged; Arrow says what is wrong
    return largest


def _blocks(stream: BinaryIO, file_size: int) -> Iterator[int]:
    """Where the footer of a file says that its dictionaries and batches are."""
    stream.seek(file_size - 10)
    (size,) = struct.unpack("<i", stream.read(4))
    # Ten bytes: the size of the footer and the magic word behind it.
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
        place = body + table.number(3, "<q")


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


def _batch(stream: BinaryIO, place: int) -> tuple[_Table | None, bool, int]:
    """The batch in the message at a place, if it is one; whether it is a dictionary; where its body begins."""
    table, body = _message(stream, place)
    kind = 0 if table is None else table.number(1, "<B")
    if table is None or kind not in (_RECORD_BATCH, _DICTIONARY):
        return None, False, body
    is_dictionary = kind == _DICTIONARY
    batch = table.child(2)
    return (batch.child(1) if batch is not None and is_dictionary else batch), is_dictionary, body


def _buffers(stream: BinaryIO, batch: _Table, body: int) -> int:
    """Bytes of all buffers of a batch; decoded, where they are compressed."""
    buffers = [(offset, size) for offset, size in batch.structs(2, "<qq") if size > 0]
    if batch.child(3) is None:
        return sum(size for _, size in buffers)
    total = 0
    for offset, size in buffers:
        stream.seek(body + offset)
        # Less than nothing: this one is stored as it is.
        decoded = struct.unpack("<q", stream.read(8))[0]
        total += decoded if decoded >= 0 else size
    return total
