"""Judges of answers: both orders, ties, which score counts, and what they are shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hftune.inference.judging import Judge, outcome, score, verdict
from hftune.inference.questions import Question, asked
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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Score: 7", 7.0),
        ("It would be a score of 3 at best.\n**Score:** 8.5/10", 8.5),
        ("score - 4", None),
        ("Score: 10", 10.0),
        ("Score: 1 / 10", 1.0),
        ("Score: 0", None),
        ("Score: 11", None),
        ("Score: 5/100", None),
        ("I cannot say", None),
        ("Score: 9\nSCORE: 2", 2.0),
    ],
)
def test_the_last_score_counts(text: str, value: float | None) -> None:
    assert score(text) == value


def test_what_a_judge_is_shown() -> None:
    def answer(path: str, body: Any) -> tuple[int, dict[str, Any]]:
        text = body["messages"][0]["content"]
        said = "Score: 9" if "known to be right" in text else "I cannot say"
        return 200, {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}

    records = [replace(asked("What is 1 plus {x}?"), right="2"), asked("Why?")]
    with server(answer) as found:
        said = [{"role": "assistant", "content": "two"}, {"role": "assistant"}]
        assert Judge(found.url, "j").scores(records, said) == [9.0, None]
    shown = sorted(body["messages"][0]["content"] for _, body, _ in found.requests)
    known, bare = sorted(shown, key=lambda text: "known" not in text)
    assert "[conversation]\nuser: What is 1 plus {x}?\n\n[answer]\ntwo\n" in known
    assert "[an answer that is known to be right]\n2\n" in known and "[answer]\n\n" in bare
    assert all(body["temperature"] == 0 and body["model"] == "j" for _, body, _ in found.requests)
