"""The judge of `hftune sample`: what it is shown, and which score counts."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.readers.base import Row
from hftune.tools.sampling.judging import ScoringJudge, score
from hftune.tools.talking.chat_server import ChatServer
from hftune.tools.talking.records import asked
from tests.answering import server


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

    records = [
        asked(Row({"prompt": "What is 1 plus {x}?", "answer": "2"}, "a", 1)),
        asked(Row({"prompt": "Why?"}, "a", 2)),
    ]
    with server(answer) as found:
        judge = ScoringJudge(ChatServer(found.url, "--judge_url", "j", "HFTUNE_JUDGE_API_KEY"))
        assert judge(records, [{"role": "assistant", "content": "two"}, {"role": "assistant"}]) == [9.0, None]
    shown = sorted(body["messages"][0]["content"] for _, body, _ in found.requests)
    known, bare = sorted(shown, key=lambda text: "known" not in text)
    assert "[conversation]\nuser: What is 1 plus {x}?\n\n[answer]\ntwo\n" in known
    assert "[an answer that is known to be right]\n2\n" in known and "[answer]\n\n" in bare
    assert all(body["temperature"] == 0 and body["model"] == "j" for _, body, _ in found.requests)
