"""A judge behind an OpenAI-compatible server: whether an answer is better than the record's, asked in both orders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hftune.data.messages import Message
from hftune.logging import notice
from hftune.tools.talking.answering import Question
from hftune.tools.talking.chat_server import ChatServer
from hftune.tools.talking.records import transcript

_PROMPT = """Compare two answers to the last turn of a conversation. Judge whether they are right, helpful and clear; \
neither their order nor their length counts.

[conversation]
{conversation}

[answer A]
{first}

[answer B]
{second}

End with one line: "Verdict: A", "Verdict: B", or "Verdict: tie"."""
# A small "a" may be an article, as in "a tie": it names an answer only where nothing but a mark follows.
_VERDICT = re.compile(
    r"(?i:verdict)\W*(?:(?i:is|it is|it's|an?|the|answer|response|option)\W+)*?"
    r"((?i:tie|draw)\b|[ABab](?=[^\w\s]|\s*$|\s+(?i:is|wins|because|since)\b))",
    re.MULTILINE,
)
_TOKENS = 1024


class Judge:
    """Compares answers.

    Args:
        server: That judges.
    """

    def __init__(self, server: ChatServer) -> None:
        self.server = server

    def __call__(self, comparisons: Sequence[tuple[list[Message], str, str]]) -> list[float]:
        """Of each conversation with an answer and another one: 1 where the first is better, 0.5 for a tie, else 0.

        Both orders are asked, since judges favour a place; a verdict that changes with the order is a tie.
        """
        asked = []
        for messages, ours, other in comparisons:
            asked += [_question(messages, ours, other), _question(messages, other, ours)]
        said = self.server(asked, max_new_tokens=_TOKENS, temperature=0)
        texts = [str(one.message["content"]) for one in said]
        if none := sum(not _VERDICT.search(text) for text in texts):
            notice(f"{none} of {len(texts)} answers of the judge hold no verdict; each counts as a tie")
        verdicts = [verdict(text) for text in texts]
        return [outcome(*verdicts[place : place + 2]) for place in range(0, len(verdicts), 2)]


def verdict(text: str) -> str:
    """`a`, `b` or `tie`: the last that a judge says; `tie` where it says none."""
    found = _VERDICT.findall(text)
    return str(found[-1]).lower().replace("draw", "tie") if found else "tie"


def outcome(ours_first: str, ours_second: str) -> float:
    """1 where an answer wins in both places, 0 where it loses in both; else 0.5."""
    return {("a", "b"): 1.0, ("b", "a"): 0.0}.get((ours_first, ours_second), 0.5)


def _question(messages: Sequence[Message], first: str, second: str) -> Question:
    text = _PROMPT.format(conversation=transcript(messages), first=first, second=second)
    turn: dict[str, Any] = {"role": "user", "content": text}
    return Question([turn])
