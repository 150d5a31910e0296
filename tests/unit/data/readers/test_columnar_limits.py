"""Sizes are read from the files themselves, as pyarrow writes them."""

from __future__ import annotations

import pytest

from hftune.data.readers import columnar_limits
from hftune.data.readers.columnar_limits import HARD_LIMIT, TooMuchMemory, check_rows, check_size

MIB = 1 << 20


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
