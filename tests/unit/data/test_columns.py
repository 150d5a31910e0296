"""Columns under other names."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.columns import apply_columns, check_columns, columns_found, parse_columns
from hftune.data.records import to_conversation
from hftune.errors import ArgumentError, DataError
from tests.unit.data.helpers import assistant, row, user

QA = {"prompt": "question", "response": "answer"}


@pytest.mark.parametrize(
    "given",
    [
        "prompt=question response=answer",
        " prompt=question, response=answer ",
        '{"prompt": "question", "response": "answer"}',
        {"prompt": "question", "response": "answer"},
    ],
)
def test_ways_to_write_them(given: Any) -> None:
    assert parse_columns(given) == QA


@pytest.mark.parametrize("given", [None, "", {}])
def test_none(given: Any) -> None:
    assert parse_columns(given) == {}
    plain = row(a=1)
    assert apply_columns(plain, {}) is plain


@pytest.mark.parametrize(
    "given",
    ["question", "prompt=", "=question", "prompt=a response=a", "prompt=a prompt=b", '{"prompt": 3}', "{", {"a": None}],
)
def test_refused(given: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse_columns(given)
    assert caught.value.place == "--columns" and caught.value.fix


def test_renamed_columns_are_recognised() -> None:
    source = row(4, question="Q", answer="A", level=2)
    renamed = apply_columns(source, QA)
    assert renamed.value == {"prompt": "Q", "response": "A", "level": 2}
    assert renamed.origin == source.origin and source.value["question"] == "Q"
    assert to_conversation(renamed).messages == [user("Q"), assistant("A")]


def test_names_may_be_swapped_and_missing() -> None:
    swapped = parse_columns("chosen=rejected rejected=chosen")
    assert apply_columns(row(chosen="a", rejected="b"), swapped).value == {"chosen": "b", "rejected": "a"}
    assert apply_columns(row(answer="A"), QA).value == {"response": "A"}
    assert apply_columns(row(question="Q", prompt=None), QA).value == {"prompt": "Q"}


def test_two_columns_for_one_name() -> None:
    with pytest.raises(DataError, match='has "prompt" already') as caught:
        apply_columns(row(3, question="Q", prompt="P"), QA)
    assert caught.value.place == "data.jsonl:3" and caught.value.kind == "column under two names"


def test_a_column_that_no_record_has() -> None:
    rows = [row(question="Q"), row(answer="A", other=1)]
    found = set().union(*(columns_found(each, QA) for each in rows))
    check_columns(QA, found)
    with pytest.raises(ArgumentError, match="no record has the column answer"):
        check_columns(QA, columns_found(rows[0], QA))
