"""What the buffers of Arrow files say of their size."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from hftune.data.readers import arrow_limits, columnar_limits
from hftune.data.readers.arrow_limits import check_arrow
from hftune.data.readers.columnar_limits import TooMuchMemory


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
