"""CSV: fields hold anything, and what is broken is one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.data.readers.base import Reader, Row
from hftune.data.readers.csv_table import csv_chunks, tsv_chunks
from tests.unit.data.readers.test_readers import kinds, read, write


def test_csv_fields_hold_anything(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", b'\xef\xbb\xbf prompt ,response\r\n"a, ""b""\nc",\xe4\xb8\x96\r\n\r\n,x\r\nq,\r\n')
    rows, errors = read(path)
    assert not errors
    assert [(row.line, row.value) for row in rows] == [
        (2, {"prompt": 'a, "b"\nc', "response": "世"}),
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


@pytest.mark.parametrize(("read_chunks", "mark"), [(csv_chunks, ","), (tsv_chunks, "\t")])
def test_chunks_keep_the_lines_where_records_start(tmp_path: Path, read_chunks: Reader, mark: str) -> None:
    path = write(tmp_path, "a.csv", f'a{mark}b\n1{mark}"x\ny"\n\n2{mark}z\n3{mark}z\n')
    found = [list(chunk.rows()) for chunk in read_chunks(path, 2)]
    assert [len(rows) for rows in found] == [2, 1]
    rows = [row for rows in found for row in rows if isinstance(row, Row)]
    assert [(row.line, row.value) for row in rows] == [
        (2, {"a": "1", "b": "x\ny"}),
        (5, {"a": "2", "b": "z"}),
        (6, {"a": "3", "b": "z"}),
    ]
