"""Compressed files give what is before their damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from tests.unit.data.readers.test_readers import CSV, LINES, RECORDS, kinds, read, write


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "b.json.gz", "a.csv.zst", "a.txt.gz"])
def test_a_cut_file_gives_what_is_before_the_cut(tmp_path: Path, name: str) -> None:
    plain = LINES if name != "b.json.gz" else json.dumps(RECORDS, indent=1).encode()
    plain = CSV if "csv" in name else plain
    # Two members: the first is whole.
    pack = gzip.compress if name.endswith("gz") else zstandard.compress
    middle = plain.index(b"\n", len(plain) // 2) + 1
    content = pack(plain[:middle]) + pack(plain[middle:])[:-60]
    path = write(tmp_path, name, content)
    rows, errors = read(path)
    assert 450 <= len(rows) < 1000
    assert kinds(errors) == ["damaged file"]
    file, _, line = (errors[0].place or "").rpartition(":")
    assert file == str(path) and int(line) >= rows[-1].line
    assert "are lost" in errors[0].cause
