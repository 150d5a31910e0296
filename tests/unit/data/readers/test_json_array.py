"""Arrays of records, and objects one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hftune.data.readers import json_array
from hftune.data.readers.base import Row
from hftune.data.readers.json_array import json_chunks
from tests.unit.data.readers.test_lines import BAD_LINES
from tests.unit.data.readers.test_readers import kinds, read, write


@pytest.mark.parametrize(("line", "kind"), [entry for entry in BAD_LINES if entry[1] in ("duplicate key", "not UTF-8")])
def test_a_bad_record_of_an_array_leaves_the_others(tmp_path: Path, line: bytes, kind: str) -> None:
    path = write(tmp_path, "a.json", b'[{"a": 1},\n' + line + b',\n{"a": 2}]')
    rows, errors = read(path)
    assert [row.line for row in rows] == [1, 3] and kinds(errors) == [kind]
    assert errors[0].place == f"{path}:2"


def test_a_broken_array_loses_what_is_behind_the_break(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", '[{"a": 1},\n{"a": 2},\n{"a" 3},\n{"a": 4}]')
    rows, errors = read(path)
    assert [row.value["a"] for row in rows] == [1, 2]
    assert kinds(errors) == ["malformed JSON"] and errors[0].place == f"{path}:3"
    assert "no record behind this line can be read" in errors[0].cause


@pytest.mark.parametrize("size", [100, 5_000_000])
def test_records_of_an_array_may_be_long(tmp_path: Path, size: int) -> None:
    records = [{"a": "世" * size, "n": 1234567}, {"a": "end"}]
    path = write(tmp_path, "a.json", json.dumps(records, ensure_ascii=False, indent=2))
    rows, errors = read(path)
    assert not errors and [row.value for row in rows] == records and [row.line for row in rows] == [2, 6]


def test_records_over_several_lines_behind_a_mark_and_blanks(tmp_path: Path) -> None:
    records = [{"a": 'quote " and \\ 世界 🙂', "n": [1.5e-7, -12, True, None]}, {"b": {"c": "\n"}}]
    path = write(tmp_path, "a.json", b"\xef\xbb\xbf \n" + json.dumps(records, ensure_ascii=False, indent=1).encode())
    rows, errors = read(path)
    assert not errors and [row.value for row in rows] == records and [row.line for row in rows] == [3, 12]


def test_an_array_larger_than_the_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a.json", json.dumps([{"a": "x" * 1000}] * 20))
    monkeypatch.setattr(json_array.psutil, "virtual_memory", lambda: SimpleNamespace(available=30_000))
    rows, errors = read(path)
    assert not rows and kinds(errors) == ["unreadable file"] and ".jsonl" in str(errors[0].fix)
    monkeypatch.setattr(json_array.psutil, "virtual_memory", lambda: SimpleNamespace(available=90_000))
    assert len(read(path)[0]) == 20


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('[\n{"a": 1},\n\n{"a": 2}]', [2, 4]),
        ('\ufeff{"a": 1}\n{"a": 2}\n', [1, 2]),  # lines of JSON under another name
        ('{\n"a": 1}\n\n{"a":\n2}', [1, 4]),  # objects one after the other
        ('{"a": 1}', [1]),
    ],
)
def test_what_a_json_file_may_hold(tmp_path: Path, text: str, lines: list[int]) -> None:
    found = [row for chunk in json_chunks(write(tmp_path, "a.json", text), 1) for row in chunk.rows()]
    assert [(row.line, row.value) for row in found if isinstance(row, Row)] == [
        (line, {"a": number}) for number, line in enumerate(lines, start=1)
    ]
