"""Which answers are kept, as records that the scripts read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Record = dict[str, Any]
Answers = Sequence[Mapping[str, Any]]
"""To one prompt: each with `message`, `ended` (it was not cut) and `score` (None: it has none)."""


def kept(keep: str, asked: Mapping[str, Any], answers: Answers, threshold: float | None) -> list[Record]:
    """The records that become of the answers to one prompt.

    Args:
        keep: A key of `_WAYS`.
        asked: `messages`, and `tools` where some are offered.
        threshold: See `--threshold`.
    """
    # An answer that was cut teaches to end nowhere, one without a word nothing: no stage reads it.
    scored = [one for one in answers if one["score"] is not None and one["ended"] and _says_something(one["message"])]
    return list(_WAYS[keep](asked, scored, threshold)) if scored else []


def _best(asked: Mapping[str, Any], answers: Answers, threshold: float | None) -> Iterator[Record]:
    best = max(answers, key=_score)
    if threshold is None or best["score"] >= threshold:
        yield _conversation(asked, best)


def _all_above(asked: Mapping[str, Any], answers: Answers, threshold: float | None) -> Iterator[Record]:
    assert threshold is not None, "checked"
    said: list[Any] = []
    for one in answers:
        # The same answer drawn twice is one record.
        if one["score"] >= threshold and one["message"] not in said:
            said.append(one["message"])
            yield _conversation(asked, one)


def _pair(asked: Mapping[str, Any], answers: Answers, threshold: float | None) -> Iterator[Record]:
    best, worst = max(answers, key=_score), min(answers, key=_score)
    difference = best["score"] - worst["score"]
    if difference > 0 and difference >= (threshold or 0.0):
        both = {"chosen": [best["message"]], "rejected": [worst["message"]]}
        yield {"prompt": asked["messages"], **both, **_tools(asked)}


def _score(answer: Mapping[str, Any]) -> float:
    return float(answer["score"])


def _conversation(asked: Mapping[str, Any], answer: Mapping[str, Any]) -> Record:
    return {"messages": [*asked["messages"], answer["message"]], **_tools(asked)}


def _tools(asked: Mapping[str, Any]) -> Record:
    return {"tools": asked["tools"]} if asked.get("tools") else {}


def whatever_they_score(answers: Answers) -> Answers:
    """The answers as if all had ended, each with a lower score than the one before: any way keeps some of them."""
    return [
        {"message": {"content": f"{number}", **_filled(one["message"])}, "ended": True, "score": -float(number)}
        for number, one in enumerate(answers)
    ]


def _filled(message: Mapping[str, Any]) -> Record:
    return {name: value for name, value in message.items() if value}


def _says_something(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls") or str(message.get("content") or "").strip())


_WAYS: dict[str, Callable[[Mapping[str, Any], Answers, float | None], Iterator[Record]]] = {
    "best": _best,
    "threshold": _all_above,
    "pairs": _pair,
}
