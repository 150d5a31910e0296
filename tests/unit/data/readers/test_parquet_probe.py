"""Rows that may be too much are read by a process that may fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hftune.data.readers import columnar
from hftune.data.readers.columnar import parquet_chunks
from hftune.data.readers.columnar_limits import TooMuchMemory
from hftune.data.readers.parquet_probe import MemoryProbe
from tests.unit.data.readers.test_columnar_limits import MIB

NESTED = pa.array([["x" * 1000] * 90 + ["y" * 3000] * 10] * 10)


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
