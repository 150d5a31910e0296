"""Records a line: chunks are places, and a bad line is one error."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
import zstandard

from hftune.data.readers import base, lines
from hftune.data.readers.files import chunks
from hftune.data.readers.lines import LineBytes, LineRange
from hftune.errors import DataError
from tests.unit.data.readers.test_readers import LINES, kinds, read, write


def test_a_plain_chunk_is_a_place_and_a_packed_one_its_bytes(tmp_path: Path) -> None:
    plain = list(chunks([write(tmp_path, "a.jsonl", LINES)], 256))
    assert [type(chunk) for chunk in plain] == [LineRange] * 4
    assert max(len(pickle.dumps(chunk)) for chunk in plain) < 500
    packed = list(chunks([write(tmp_path, "b.jsonl.gz", gzip.compress(LINES))], 256))
    assert [type(chunk) for chunk in packed] == [LineBytes] * 4


@pytest.mark.parametrize("block", [1, 5, 64, 1 << 20])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_borders_do_not_depend_on_the_blocks_read(monkeypatch: pytest.MonkeyPatch, block: int, end: bytes) -> None:
    content = b"a\n\nbbbb\n" * 5 + b"c" * 50 + b"\n" + b"dd\n" * 9 + b"last" + end
    monkeypatch.setattr(lines, "MAX_CHUNK_BYTES", 40)
    blocks = [content[start : start + block] for start in range(0, len(content), block)]
    found = list(lines._chunk_sizes(blocks, rows_per_chunk=4))
    assert sum(size for size, _, _ in found) == len(content)
    assert sum(count for _, count, _ in found) == content.count(b"\n") + (not end)
    start = 0
    for size, count, _ in found:
        piece = content[start : start + size]
        # Whole lines, 4 at most; a line that reaches the limit of bytes is the chunk's last.
        assert piece.count(b"\n") in (count, count - 1) and count <= 4
        assert len(piece.rstrip(b"\n").rpartition(b"\n")[0]) < 40
        start += size
    assert [size for size, _, _ in found][:3] == [10, 9, 13]


def test_long_records_make_chunks_of_fewer(tmp_path: Path) -> None:
    long = {"text": "x" * (base.MAX_CHUNK_BYTES // 3)}
    content = b"\n".join([json.dumps(long).encode()] * 10)
    for name in ("a.jsonl", "a.jsonl.zst", "b.json"):
        data = zstandard.compress(content) if name.endswith("zst") else content
        data = b"[" + content.replace(b"\n", b",\n") + b"]" if name == "b.json" else data
        counts = [len(list(chunk.rows())) for chunk in chunks([write(tmp_path, name, data)])]
        assert sum(counts) == 10 and max(counts) <= 4, name


BAD_LINES = [
    (b'{"a": 1', "malformed JSON"),
    (b'{"a": NaN}', "malformed JSON"),
    (b'{"a": Infinity}', "malformed JSON"),
    (b'{"a": "\x01"}', "malformed JSON"),
    (b'{"a": 1} {"a": 2}', "malformed JSON"),
    (b"\xef\xbb\xbf{}", "malformed JSON"),
    (b'{"a": 1, "b": 2, "a": 3}', "duplicate key"),
    (b'{"a": [{"b": {"c": 1, "c": 1}}]}', "duplicate key"),
    (b'{"say \\"a\\"": 1, "say \\"a\\"": 2}', "duplicate key"),
    (b'{"a\\\\": 1, "a\\\\" : 2}', "duplicate key"),
    (b'{"a": "\\u0022\\u0022", "b": "x", "b": 1}', "duplicate key"),
    (b'{"a": 18446744073709551616}', "number out of range"),
    (b'{"a": -9223372036854775809}', "number out of range"),
    (b'{"a": ' + b"9" * 6000 + b"}", "number out of range"),
    (b'{"a": 1e999}', "number out of range"),
    (b'{"a": "\\ud83d"}', "half a surrogate pair"),
    (b'{"a": "\xff"}', "not UTF-8"),
    (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
    (b'{"a": "\x00"}', "NUL byte"),
    (b"[1]", "not an object"),
    (b"3", "not an object"),
    (b'"text"', "not an object"),
    (b'{"a": ' + b"[" * 150 + b"]" * 150 + b"}", "nested too deep"),
    (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deep"),
]


GOOD_LINES = [
    b'{"a": 18446744073709551615, "b": -9223372036854775808, "c": 1e30, "d": 12345678901234567890.5}',
    b'{"a": "he said \\"b\\": \\"b\\"", "c": "\\u0022", "\\u0022": 1}',
    b'{"a": {"b": 1}, "c": {"b": 2}, "b" : [{"b": 1}, {"b": 2}]}',
    b'{"a": "\\ud83d\\ude42 \\\\ud83d"}',
    b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}",
    b'  {"a": "\xe2\x80\xa8"}\t\r',
]


@pytest.mark.parametrize(("line", "kind"), BAD_LINES)
def test_a_bad_line_is_one_error_between_good_rows(tmp_path: Path, line: bytes, kind: str) -> None:
    path = write(tmp_path, "a.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    rows, errors = read(path)
    assert [row.line for row in rows] == [1, 3]
    assert kinds(errors) == [kind]
    assert errors[0].place == f"{path}:2" and errors[0].fix and "\n" not in errors[0].cause


@pytest.mark.parametrize("line", GOOD_LINES)
def test_what_looks_suspicious_and_is_not(tmp_path: Path, line: bytes) -> None:
    rows, errors = read(write(tmp_path, "a.jsonl", line + b"\n"))
    assert not errors and rows[0].value == json.loads(line)


def test_a_file_that_shrinks_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", LINES)
    found = list(chunks([path]))
    path.write_bytes(LINES[:100])
    assert kinds([read for read in found[-1].rows() if isinstance(read, DataError)]) == ["file changed"]
    path.unlink()
    assert kinds([read for read in found[0].rows() if isinstance(read, DataError)]) == ["unreadable file"]
    rows, errors = read(path)
    assert (rows, kinds(errors)) == ([], ["unreadable file"])
