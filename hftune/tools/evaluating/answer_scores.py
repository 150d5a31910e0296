"""Scores of a generated answer, each by a library where there is one: by how far it is the right one, or its form."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hftune.arguments.asking import ANSWER_TASKS
from hftune.data.messages import Message
from hftune.data.strict_json import loads
from hftune.errors import ArgumentError, DataError
from hftune.on_demand import on_demand
from hftune.trainers.rewards.builtin import accuracy

_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n```", re.DOTALL)
_NEEDS = {
    "bleu": ("sacrebleu.metrics:BLEU", "sacrebleu"),
    "chrf": ("sacrebleu.metrics:CHRF", "sacrebleu"),
    "rouge": ("rouge_score.rouge_scorer:RougeScorer", "rouge_score"),
}
"""Tasks of libraries that need not be there: what is imported, and its package."""


def missing_libraries(tasks: Sequence[str]) -> Iterator[ArgumentError]:
    """Problems: tasks whose library is not installed."""
    for task in tasks:
        if task in _NEEDS:
            try:
                on_demand(_NEEDS[task][0])
            except ImportError:
                fix = "pip install 'hftune[eval]'"
                yield ArgumentError(f"{task} needs the package {_NEEDS[task][1]}", place="--eval_tasks", fix=fix)


def scores(
    tasks: Sequence[str], said: Message, right: str | None, tools: Sequence[Mapping[str, Any]] | None
) -> dict[str, float]:
    """The scores of an answer in some of `ANSWER_TASKS`; none in those that do not apply to the record.

    Args:
        said: Its text without thoughts, and calls apart from it.
        right: The answer of the record; None where it has none.
        tools: What was offered.
    """
    found: dict[str, float] = {}
    for task in ANSWER_TASKS:
        if task not in tasks:
            continue
        if task == "json":
            found[task] = float(_is_json(said["content"]))
        elif task == "tool_calls":
            found |= {task: float(_calls_fit(said.get("tool_calls") or [], tools))} if tools else {}
        elif right is not None:
            found[task] = _COMPARED[task](said["content"], right)
    return found


def _exact(text: str, right: str) -> float:
    return float(" ".join(text.split()) == " ".join(right.split()))


def _math(text: str, right: str) -> float:
    (found,) = accuracy([text], answer=[right])
    return float(found or 0.0)


@functools.cache
def _metric(task: str) -> Any:
    make = on_demand(_NEEDS[task][0])
    # Of single sentences: without it, an answer of three words has no 4-grams and BLEU 0.
    return make(["rougeL"]) if task == "rouge" else make(effective_order=True) if task == "bleu" else make()


def _sacrebleu(task: str) -> Callable[[str, str], float]:
    return lambda text, right: float(_metric(task).sentence_score(text, [right]).score)


def _rouge(text: str, right: str) -> float:
    return float(_metric("rouge").score(right, text)["rougeL"].fmeasure)


_COMPARED: dict[str, Callable[[str, str], float]] = {
    "exact_match": _exact,
    "math": _math,
    "bleu": _sacrebleu("bleu"),
    "chrf": _sacrebleu("chrf"),
    "rouge": _rouge,
}


def _is_json(text: str) -> bool:
    """Whether an answer is JSON, alone or in one fenced block."""
    fenced = _FENCED.fullmatch(text.strip())
    try:
        loads((fenced[1] if fenced else text).strip().encode())
    except (DataError, UnicodeEncodeError):
        return False
    return True


def _calls_fit(calls: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there are calls, of offered functions alone, each with the arguments that it needs and no others."""
    offered = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return bool(calls) and all(_call_fits(call["function"], offered) for call in calls)


def _call_fits(call: Mapping[str, Any], offered: Mapping[str, Mapping[str, Any]]) -> bool:
    schema, given = offered.get(call["name"]), call.get("arguments") or {}
    if schema is None or not isinstance(given, Mapping):
        return False
    known, needed = schema.get("properties"), set(schema.get("required") or [])
    return needed <= {*given} and (not isinstance(known, Mapping) or {*given} <= {*known})
