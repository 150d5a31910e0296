"""Which answers are kept, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.compared_answers import to_preference
from hftune.data.readers.files import Row
from hftune.data.records import to_conversation
from hftune.tools.sampling import kept, whatever_they_score

TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Why?"}], "tools": None}


def said(text: str, score: float | None, ended: bool = True) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}, "score": score, "ended": ended}


ANSWERS = [
    said("b", 0.5),
    said("a", 0.1),
    said("c", 0.9),
    said("cut", 2.0, ended=False),
    said("", None),
    said("c", 0.9),
]


def texts(keep: str, threshold: float | None = None, answers: list[dict[str, Any]] = ANSWERS) -> list[str]:
    return [record["messages"][-1]["content"] for record in kept(keep, ASKED, answers, threshold)]


@pytest.mark.parametrize("keep, count", [("best", 1), ("threshold", 3), ("pairs", 1)])
def test_a_dry_run_keeps_what_a_run_would_not(keep: str, count: int) -> None:
    answers = [said("", 0.0), said("cut", 0.0, ended=False), said("x", None)]
    assert kept(keep, ASKED, answers, 0.5) == []
    records = kept(keep, ASKED, whatever_they_score(answers), float("-inf"))
    assert len(records) == count
    for number, record in enumerate(records):
        read = to_preference if keep == "pairs" else to_conversation
        assert read(Row(record, "a", number + 1))


def test_an_answer_without_a_word_is_no_record() -> None:
    """It scored best: no stage reads it."""
    assert texts("best", answers=[said(" ", 2.0), said("b", 1.0)]) == ["b"]
    assert kept("pairs", ASKED, [said("a", 1.0), said("", 0.0)], None) == []


def test_the_best_answer_is_a_record_of_sft() -> None:
    (record,) = kept("best", {**ASKED, "tools": [TOOL]}, ANSWERS, None)
    assert record == {"messages": [*ASKED["messages"], {"role": "assistant", "content": "c"}], "tools": [TOOL]}
    conversation = to_conversation(Row(record, "a", 1))
    assert conversation.messages == record["messages"] and conversation.tools == [TOOL]
    assert texts("best", 0.9) == ["c"] and texts("best", 0.91) == []


def test_all_above_a_threshold_each_once() -> None:
    assert texts("threshold", 0.5) == ["b", "c"] and texts("threshold", 0.51) == ["c"]


def test_pairs_are_of_the_best_and_the_worst() -> None:
    (record,) = kept("pairs", ASKED, ANSWERS, None)
    pair = to_preference(Row(record, "a", 1))
    assert [one[-1]["content"] for one in (pair.prompt, pair.chosen, pair.rejected)] == ["Why?", "c", "a"]
    assert len(kept("pairs", ASKED, ANSWERS, 0.8)) == 1 and kept("pairs", ASKED, ANSWERS, 0.81) == []
    assert kept("pairs", ASKED, [said("a", 1.0), said("b", 1.0)], None) == [], "neither is better"


@pytest.mark.parametrize("keep", ["best", "threshold", "pairs"])
def test_what_was_cut_or_has_no_score_is_not_kept(keep: str) -> None:
    assert kept(keep, ASKED, [said("cut", 2.0, ended=False), said("", None)], 0.0) == []
