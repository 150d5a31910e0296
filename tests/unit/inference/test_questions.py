"""Records that are asked about, from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hftune.data.files import Row
from hftune.inference.questions import question_of, rows_of
from hftune.tools.evaluating.answer_scores import scores


@pytest.mark.parametrize(("most", "there"), [(None, 3), (-1, 3), (2, 2), (9, 3)])
def test_so_many_at_most(tmp_path: Path, most: int | None, there: int) -> None:
    records = [{"messages": [{"role": "user", "content": str(number)}]} for number in range(3)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    found = rows_of(str(tmp_path), "--train_file_dir", most)
    assert [row.value["messages"][0]["content"] for row, _ in found] == [str(number) for number in range(there)]
    assert {source for _, source in found} == {"a.jsonl"}


@pytest.mark.parametrize(("answer", "text"), [(42, "42"), (["NYC", "纽约"], '["NYC", "纽约"]'), ("4", "4"), (0, "0")])
def test_the_right_answer_of_a_record(answer: object, text: str) -> None:
    record = {"prompt": [{"role": "user", "content": "?"}], "answer": answer}
    assert question_of(Row(record, "a.jsonl", 1)).right == text


def test_each_of_several_right_answers_is_right() -> None:
    record = {"prompt": [{"role": "user", "content": "?"}], "answer": ["NYC", "New York"]}
    right = question_of(Row(record, "a.jsonl", 1)).right
    said = ["The answer is New York.", "The answer is Boston."]
    assert [scores(["math"], {"content": one}, right, None)["math"] for one in said] == [1.0, 0.0]
