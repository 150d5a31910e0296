"""Records that are asked about, from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.tools.talking.records import rows_of


@pytest.mark.parametrize(("most", "there"), [(None, 3), (-1, 3), (2, 2), (9, 3)])
def test_so_many_at_most(tmp_path: Path, most: int | None, there: int) -> None:
    records = [{"messages": [{"role": "user", "content": str(number)}]} for number in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    found = rows_of(str(tmp_path), "--train_file_dir", most)
    assert [row.value["messages"][0]["content"] for row, _ in found] == [str(number) for number in range(there)]
    assert {source for _, source in found} == {"a.jsonl"}
