"""Judges of answers: both orders and ties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hftune.inference.judging import Judge, outcome, verdict
from hftune.inference.questions import Question
from tests.answering import server


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Verdict: A", "a"),
        ("B is long.\n**Verdict:** B", "b"),
        ("Verdict: A? No.\nVerdict: tie", "tie"),
        ("I cannot say", "tie"),
        ("Verdict: Apple", "tie"),
        ("Verdict: a tie", "tie"),
        ("Verdict: A tie.", "tie"),
        ("Verdict: it is a tie", "tie"),
        ("verdict: tie", "tie"),
        ("Verdict: a draw", "tie"),
        ("Verdict: a clear win for nobody", "tie"),
        ("Verdict: A and B are alike", "tie"),
        ("verdict: a", "a"),
        ("Verdict: Answer A.", "a"),
        ("Verdict: **A** (clearer)", "a"),
        ("Verdict: [[B]]", "b"),
        ("Verdict: B is better", "b"),
        ("The verdict is: B", "b"),
    ],
)
def test_the_last_verdict_counts(text: str, said: str) -> None:
    assert verdict(text) == said


@pytest.mark.parametrize(
    ("first", "second", "score"),
    # A verdict that changes with the order is a tie.
    [("a", "b", 1), ("b", "a", 0), *((one, other, 0.5) for one, other in ("aa", "bb", ("a", "tie"), ("tie", "b")))],
)
def test_both_orders_count(first: str, second: str, score: float) -> None:
    assert outcome(first, second) == score


def test_a_judge_that_likes_the_first_place_has_no_say() -> None:
    def answer(path: str, body: Any) -> tuple[int, dict[str, Any]]:
        text = body["messages"][0]["content"]
        first = text.partition("[answer A]")[2].partition("[answer B]")[0]
        said = "A" if "fair" not in text or "good" in first else "B"
        return 200, {"choices": [{"message": {"content": f"Verdict: {said}"}, "finish_reason": "stop"}]}

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    why = Question(messages, right="bad")
    fair = Question([*messages[:1], {"role": "user", "content": "Be fair: why?"}], right="bad")
    good, bad = ({"role": "assistant", "content": text} for text in ("good", "bad"))
    with server(answer) as service:
        judge = Judge(service.url, "j")
        questions = [why, replace(why, right=None), fair, replace(fair, right="good")]
        assert judge.wins(questions, [good, good, good, bad]) == [0.5, None, 1.0, 0.0]
    body = service.requests[0][1]
    assert len(service.requests) == 6 and body["temperature"] == 0 and body["model"] == "j"
    assert "system: Be brief.\nuser: " in body["messages"][0]["content"]


def test_no_questions_ask_nobody() -> None:
    with server(lambda path, body: (500, {})) as service:
        assert Judge(service.url, None).wins([], []) == []
    assert service.requests == []
