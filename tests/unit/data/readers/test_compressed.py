"""Compressed files give what is before their damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from hftune.data.readers.compressed import BLOCK, DecompressionError, read_blocks
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


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_several_members_are_one_text(tmp_path: Path, suffix: str) -> None:
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    file = tmp_path / f"a.jsonl{suffix}"
    # gzip allows zeros behind a member.
    file.write_bytes(pack(b"one\n") + pack(b"two\n") + (bytes(512) if suffix == ".gz" else b""))
    assert b"".join(read_blocks(file)) == b"one\ntwo\n"


def test_damage_is_said_with_the_line_that_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b"x" * 1000)[:-9])
    with pytest.raises(DecompressionError, match="damaged gzip file: it ends before its end marker") as caught:
        list(read_blocks(file))
    error = caught.value.from_line(12)
    assert error.place == f"{file}:12" and error.kind == "damaged file"
    assert error.cause.endswith("all records from line 12 on are lost")


def test_plain_files_come_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * (BLOCK + 1))
    assert [len(block) for block in read_blocks(tmp_path / "a.txt")] == [BLOCK, 1]
