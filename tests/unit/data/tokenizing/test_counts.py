"""Counts are of records, and add up."""

from __future__ import annotations

from hftune.data.counts import Counts, describe_turn_tokens
from tests.unit.data.templates.test_turn_token_guard import PREFERENCE, encoded


def test_counts_are_of_records_and_add_up() -> None:
    counts, more = Counts(rows=2), Counts(rows=1)
    counts.note_turn_tokens(["a", "a", "b"])
    counts.note_turn_tokens([])
    more.note_turn_tokens(["b"])
    counts.add(more)
    assert (counts.bordered, counts.borders) == (2, {"a": 1, "b": 2})
    assert counts.to_dict()["borders"] == {"a": 1, "b": 2} and "borders" not in Counts().to_dict()
    assert Counts(**counts.to_dict()) == counts
    assert "2 of 3 records" in describe_turn_tokens(counts, "split") and "stay text" in describe_turn_tokens(
        counts, "split"
    )
    assert "encoded as these tokens" in describe_turn_tokens(counts, "allow")


def test_a_pair_counts_as_one_record() -> None:
    _, counts, _ = encoded("dpo", "split", PREFERENCE)
    assert counts.bordered == 1 and set(counts.borders.values()) == {1}
