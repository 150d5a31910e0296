"""Scores of answers, each by hand or by its library."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.messages import Message
from hftune.tools.evaluating.answer_scores import missing_libraries, scores

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {}, "day": {}}, "required": ["city"]},
        },
    }
]


def one(task: str, text: str, right: str | None = None) -> float | None:
    return scores([task], {"content": text}, right, None).get(task)


def call(name: str, **arguments: Any) -> Message:
    return {"content": "", "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("task", "text", "right", "score"),
    [
        ("exact_match", " a  b\n", "a b", 1.0),
        ("exact_match", "a b.", "a b", 0.0),
        ("math", "That makes \\boxed{42}.", "42", 1.0),
        ("math", "So it is 0.5", "1/2", 1.0),
        ("math", "So it is 41", "42", 0.0),
        ("json", '{"a": [1, 2]}', None, 1.0),
        ("json", '```json\n{"a": 1}\n```', None, 1.0),
        ("json", 'Here: {"a": 1}', None, 0.0),
        ("json", "{'a': 1}", None, 0.0),
    ],
)
def test_scores(task: str, text: str, right: str | None, score: float) -> None:
    assert one(task, text, right) == score


def test_what_does_not_apply_has_no_score() -> None:
    assert one("exact_match", "a") is None and one("tool_calls", "a") is None
    assert scores([], {"content": "a"}, "a", TOOLS) == {}


@pytest.mark.parametrize(
    ("said", "score"),
    [
        (call("weather", city="Rome"), 1.0),
        (call("weather", city="Rome", day="Monday"), 1.0),
        (call("weather", day="Monday"), 0.0),
        (call("weather", city="Rome", mood="good"), 0.0),
        (call("time", city="Rome"), 0.0),
        ({"content": "It rains."}, 0.0),
    ],
)
def test_calls_are_of_what_is_offered(said: Message, score: float) -> None:
    assert scores(["tool_calls"], said, None, TOOLS) == {"tool_calls": score}


def test_texts_are_compared_by_the_libraries() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    rouge = pytest.importorskip("rouge_score.rouge_scorer")
    text, right = "The egg boils for ten minutes.", "The egg is boiled for eight minutes."
    found = scores(["bleu", "chrf", "rouge"], {"content": text}, right, None)
    assert found["bleu"] == pytest.approx(sacrebleu.sentence_bleu(text, [right]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.sentence_chrf(text, [right]).score)
    assert found["rouge"] == pytest.approx(rouge.RougeScorer(["rougeL"]).score(right, text)["rougeL"].fmeasure)
    assert list(missing_libraries(["bleu", "rouge", "loss"])) == []


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(place: str) -> None:
        raise ImportError(place)

    monkeypatch.setattr("hftune.tools.evaluating.answer_scores.on_demand", nothing)
    (problem,) = missing_libraries(["loss", "math", "chrf"])
    assert "chrf needs the package sacrebleu" in problem.render() and "hftune[eval]" in problem.render()
