"""Text files: a bad line, element or table row is one error between good rows, and damage loses what is behind it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from hftune.data import text_files as text
from hftune.data.files import chunks
from hftune.data.strict_json import MAX_DEPTH, from_json, loads
from hftune.errors import DataError
from tests.unit.data.test_chunks import CSV, LINES, RECORDS, kinds, read, write


def test_long_records_make_chunks_of_fewer(tmp_path: Path) -> None:
    long = {"text": "x" * (text.MAX_CHUNK_BYTES // 3)}
    content = b"\n".join([json.dumps(long).encode()] * 10)
    data = {
        "a.jsonl": content,
        "a.jsonl.zst": zstandard.compress(content),
        "b.json": b"[" + content.replace(b"\n", b",\n") + b"]",
        "c.csv": b"text\n" + content.replace(b'"', b""),
    }
    for name in data:
        counts = [len(list(chunk.rows())) for chunk in chunks([write(tmp_path, name, data[name])])]
        assert sum(counts) == 10 and max(counts) <= 4, name


@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_do_not_depend_on_the_blocks_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, end: bytes
) -> None:
    monkeypatch.setattr(text, "_BLOCK", size)
    lines = [b"a", b"", b"  bb\x0bb", "c\u2028d\r".encode(), b"e" * 50, b"last"]
    path = write(tmp_path, "a.txt", b"\xef\xbb\xbf" + b"\n".join(lines) + end)
    assert [*text.raw_lines(path)] == lines
    assert [(row.line, row.value["text"]) for row in read(path)[0]] == [
        (number, line.decode().rstrip("\r")) for number, line in enumerate(lines, start=1) if line
    ]


def test_lines_of_blanks_beyond_ascii_are_no_texts(tmp_path: Path) -> None:
    rows, errors = read(write(tmp_path, "a.txt", "\u3000\ntext\n"))
    assert ([row.line for row in rows], errors) == ([2], [])


# --- JSON ---------------------------------------------------------------------------------------------------------


BAD_LINES = [
    (b'{"a": 1', "malformed JSON"),
    (b'{"a": NaN}', "malformed JSON"),
    (b'{"a": "\x01"}', "malformed JSON"),
    (b"\xef\xbb\xbf{}", "malformed JSON"),
    (b'{"a": 1, "b": 2, "a": 3}', "duplicate key"),
    (b'{"a": [{"b": {"c": 1, "c": 1}}]}', "duplicate key"),
    (b'{"a": "\\u0022\\u0022", "b": "x", "b": 1}', "duplicate key"),
    (b'{"a": ' + b"9" * 6000 + b"}", "malformed JSON"),
    (b'{"a": "\\ud83d"}', "half a surrogate pair"),
    (b'{"a": "\xff"}', "not UTF-8"),
    (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
    (b'{"a": "\x00"}', "NUL byte"),
    (b"[1]", "not an object"),
    (b'{"a": ' + b"[" * 150 + b"]" * 150 + b"}", "nested too deep"),
    (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deep"),
]


GOOD_LINES = [
    b'{"a": 184467440737095516150, "b": -9223372036854775808, "c": 1e30, "d": 12345678901234567890.5}',
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


@pytest.mark.parametrize(("line", "words"), [(b"[1]\n", "a .json file a list of them"), (b'{"a": "\xff"}', "iconv")])
def test_the_way_out_of_a_usual_fault(tmp_path: Path, line: bytes, words: str) -> None:
    _, errors = read(write(tmp_path, "a.jsonl", line))
    assert words in str(errors[0].fix)


@pytest.mark.parametrize(("line", "kind"), [entry for entry in BAD_LINES if entry[1] in ("duplicate key", "not UTF-8")])
def test_a_bad_record_of_an_array_leaves_the_others(tmp_path: Path, line: bytes, kind: str) -> None:
    path = write(tmp_path, "a.json", b'[{"a": 1},\n' + line + b',\n{"a": 2}]')
    rows, errors = read(path)
    assert [row.line for row in rows] == [1, 3] and kinds(errors) == [kind]
    assert errors[0].place == f"{path}:2"


@pytest.mark.parametrize(
    ("content", "rows", "line", "cause"),
    [
        ('[{"a": 1},\n{"a": 2},\n{"a" 3},\n{"a": 4}]', 2, 3, "Expecting ':' delimiter, found '3'"),
        ('[{"a": 1},\n{"a": 2', 1, 2, "found the end of the file"),
        ('[{"a": 1},\n{"a": 2}\n', 2, 3, "found the end of the file"),
        ('[{"a": 1}]\n]', 1, 1, "more behind the array"),
        ('[{"a": 1}]\n{"a": 2}', 1, 1, "more behind the array"),
        ('[{"a": 1},\n' + '{"a":' * 100_000, 1, 2, "nested too deep to find the end"),
    ],
)
def test_a_broken_array_loses_what_is_behind_the_break(
    tmp_path: Path, content: str, rows: int, line: int, cause: str
) -> None:
    path = write(tmp_path, "a.json", content)
    found, errors = read(path)
    assert (len(found), kinds(errors)) == (rows, ["malformed JSON"])
    assert errors[0].place == f"{path}:{line}" and cause in errors[0].cause
    assert "no record behind this line can be read" in errors[0].cause


@pytest.mark.parametrize("size", [100, 5_000_000])
def test_records_over_several_lines_behind_a_mark_and_blanks(tmp_path: Path, size: int) -> None:
    records = [{"a": 'quote " and \\ 世界 🙂' * (size // 10), "n": [1.5e-7, -12, True, None]}, {"b": {"c": "\n"}}]
    path = write(tmp_path, "a.json", b"\xef\xbb\xbf \n" + json.dumps(records, ensure_ascii=False, indent=1).encode())
    rows, errors = read(path)
    assert not errors and [row.value for row in rows] == records and [row.line for row in rows] == [3, 12]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ('[\n{"a": 1},\n\n{"a": 2}]', [2, 4]),
        ('\ufeff{"a": 1}\n{"a": 2}\n', [1, 2]),  # lines of JSON under another name
        ('{\n"a": 1}\n\n{"a":\n2}', [1, 4]),  # objects one after the other
        ('{"a": 1}', [1]),
    ],
)
def test_what_a_json_file_may_hold(tmp_path: Path, content: str, lines: list[int]) -> None:
    rows, errors = read(write(tmp_path, "a.json", content))
    assert [(row.line, row.value) for row in rows] == [(line, {"a": at}) for at, line in enumerate(lines, start=1)]
    assert not errors


def test_a_bad_line_of_a_json_file_of_lines_leaves_the_others(tmp_path: Path) -> None:
    for first in ('{"a": 1}', "\ufeff\n{}"):
        rows, errors = read(write(tmp_path, "a.json", first + '\n{"a" 2}\n{"a": 3}\n'))
        assert (len(rows), rows[-1].value, kinds(errors)) == (2, {"a": 3}, ["malformed JSON"])


# --- tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t")])
def test_fields_hold_anything(tmp_path: Path, name: str, mark: str) -> None:
    content = '\ufeff prompt ,response\r\n"a, ""b""\nc",世\r\n\r\n,x\r\nq,\r\n'
    path = write(tmp_path, name, content if mark == "," else content.replace(", ", "; ").replace(",", mark))
    rows, errors = read(path, rows_per_chunk=2)
    assert not errors
    assert [(row.line, row.value) for row in rows] == [
        (2, {"prompt": 'a, "b"\nc'.replace(",", "," if mark == "," else ";"), "response": "世"}),
        (5, {"prompt": "", "response": "x"}),
        (6, {"prompt": "q", "response": ""}),
    ]


@pytest.mark.parametrize(
    ("content", "line", "kind", "rows"),
    [
        (b"a,b\n1,2\n3\n4,5\n", 3, "ragged CSV record", 2),
        (b"a,b\n1,2\n3,4,5\n4,5\n", 3, "ragged CSV record", 2),
        (b'a,b\n1,2\n"x"y,4\n4,5\n', 3, "malformed CSV", 2),
        (b'a,b\n1,2\n"x,4\n4,5\n', 3, "malformed CSV", 1),
        (b"a,b\n1,2\n\xff,4\n4,5\n", 3, "not UTF-8", 2),
        (b"a,b\n1,2\n\x00,4\n4,5\n", 3, "NUL byte", 2),
        (b"a,a\n1,2\n", 1, "bad CSV header", 0),
        (b"a,\n1,2\n", 1, "bad CSV header", 0),
        (b"\xff,b\n1,2\n", 1, "not UTF-8", 0),
        (b'"a"b\n1,2\n', 1, "malformed CSV", 0),
    ],
)
def test_broken_csv(tmp_path: Path, content: bytes, line: int, kind: str, rows: int) -> None:
    path = write(tmp_path, "a.csv", content)
    found, errors = read(path)
    assert (len(found), kinds(errors)) == (rows, [kind])
    assert errors[0].place == f"{path}:{line}" and errors[0].fix


def test_csv_fields_may_be_longer_than_the_modules_limit(tmp_path: Path) -> None:
    rows, errors = read(write(tmp_path, "a.csv", "text\n" + "x" * 3_000_000 + "\n"))
    assert not errors and len(rows[0].value["text"]) == 3_000_000


# --- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "b.json.gz", "a.csv.zst", "a.txt.gz"])
def test_a_cut_file_gives_what_is_before_the_cut(tmp_path: Path, name: str) -> None:
    plain = LINES if name != "b.json.gz" else json.dumps(RECORDS, indent=1).encode()
    plain = CSV if "csv" in name else plain
    # Two members: the first is whole.
    pack = gzip.compress if name.endswith("gz") else zstandard.compress
    middle = plain.index(b"\n", len(plain) // 2) + 1
    path = write(tmp_path, name, pack(plain[:middle]) + pack(plain[middle:])[:-60])
    rows, errors = read(path)
    assert 450 <= len(rows) < 1000
    assert kinds(errors) == ["damaged file"]
    file, _, line = (errors[0].place or "").rpartition(":")
    assert file == str(path) and int(line) >= rows[-1].line
    assert "are lost" in errors[0].cause


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.JSONL.ZST"])
def test_several_members_are_one_text(tmp_path: Path, name: str) -> None:
    pack = gzip.compress if name.endswith("gz") else zstandard.compress
    path = write(tmp_path, name, pack(b"one\n") + pack(b"two\n"))
    assert [*text.raw_lines(path)] == [b"one", b"two"]


@pytest.mark.parametrize("depth", [1, MAX_DEPTH, MAX_DEPTH + 1, 1000, 50_000])
def test_depth(depth: int) -> None:
    raw = b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)
    if depth <= MAX_DEPTH:
        assert loads(raw) == json.loads(raw)
        return
    with pytest.raises(DataError, match="nested deeper than 100 levels"):
        loads(raw)


@pytest.mark.parametrize(("value", "found"), [('{"a": [1]}', {"a": [1]}), ("null", None), ({"a": 1}, {"a": 1}), (7, 7)])
def test_strings_of_a_record_are_decoded_and_all_else_passes(value: Any, found: Any) -> None:
    assert from_json(value, "the call", fix="Fix it.") == found


@pytest.mark.parametrize(
    ("value", "words", "fix"),
    [
        ("{", "the call is not JSON: ", "Fix it."),
        ('{"a": 1, "a": 2}', "is there twice", "Keep one of them."),
        ('"\ud83d"', "not UTF-8", "iconv"),
    ],
)
def test_a_string_of_a_record_that_would_lose_something_is_refused(value: str, words: str, fix: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        from_json(value, "the call", fix="Fix it.")
    assert caught.value.kind == "malformed JSON in a string" and fix in str(caught.value.fix)
