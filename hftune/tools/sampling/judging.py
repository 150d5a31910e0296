"""A judge behind an OpenAI-compatible server that gives each answer a score from 1 to 10."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hftune.data.messages import Message
from hftune.tools.talking.answering import Question
from hftune.tools.talking.chat_server import ChatServer
from hftune.tools.talking.records import Asked, transcript

_PROMPT = """Score an answer to the last turn of a conversation from 1 (useless) to 10 (as good as it can be). Judge \
whether it is right, helpful and clear; its length does not count.

[conversation]
{conversation}

[answer]
{answer}
{right}
End with one line: "Score: N"."""
_RIGHT = """
[an answer that is known to be right]
{}
"""
_SCORE = re.compile(r"score[^\w-]*(\d+(?:\.\d+)?)(?:\s*/\s*(\d+))?", re.IGNORECASE)
_TOKENS = 1024
_MOST = 10.0


class ScoringJudge:
    """Scores answers.

    Args:
        server: That judges.
    """

    def __init__(self, server: ChatServer) -> None:
        self.server = server

    def __call__(self, records: Sequence[Asked], said: Sequence[Message]) -> list[float | None]:
        """The score of each answer to a record's question; None where the judge gives none."""
        questions = [_question(one, message) for one, message in zip(records, said, strict=True)]
        found = self.server(questions, max_new_tokens=_TOKENS, temperature=0)
        return [score(str(one.message["content"])) for one in found]


def score(text: str) -> float | None:
    """The last score that a judge says, from 1 to 10; None where there is none."""
    found = _SCORE.findall(text)
    if not found:
        return None
    number, of = found[-1]
    value = float(number)
    # "Score: 80/100" is a score on another scale than the one that was asked for.
    return value if 1 <= value <= _MOST and of in ("", "10") else None


def _question(one: Asked, message: Message) -> Question:
    right = "" if one.right is None else _RIGHT.format(one.right)
    said = transcript(one.prompt.messages)
    text = _PROMPT.format(conversation=said, answer=message.get("content") or "", right=right)
    turn: dict[str, Any] = {"role": "user", "content": text}
    return Question([turn])
