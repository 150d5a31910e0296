"""An answer in steps, each of which is right or wrong, from all the ways they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hftune.data.readers.base import Row
from hftune.data.records import fields
from hftune.data.records.formats import refuse_media
from hftune.data.records.messages import Message
from hftune.errors import DataError, shown
from hftune.template_arguments import TemplateArguments

NO_STEPS = "no steps"
BAD_LABELS = "bad labels of steps"
UNKNOWN = "unknown format"

FORMATS = (
    '{"prompt", "completions": [step, ...], "labels": [true, ...]} (TRL)',
    '{"problem", "steps": [step, ...], "labels": [...]}, or "label": the number of the first wrong step, -1 for none '
    "(ProcessBench)",
    '{"question": {"problem"}, "label": {"steps": [...]}} (PRM800K)',
    '{"input", "label"} with ки behind each step, and + or - in its place (Math-Shepherd)',
)
# Math-Shepherd's: stands behind a step in `input`, and is its label in `label`.
_MARK = "ки"
_SHEPHERD_STEP = re.compile(r"(?=\bStep 1\b)")
_WORDS = {"+": 1.0, "-": 0.0, "true": 1.0, "false": 0.0, "right": 1.0, "wrong": 0.0, "correct": 1.0, "incorrect": 0.0}


@dataclass
class Solution:
    """A prompt, and an answer in steps.

    `labels` has one a step: the probability that it is right, 0, 1 or between; None where nobody has said.
    """

    prompt: list[Message]
    steps: list[str]
    labels: list[float | None]
    tools: list[dict[str, Any]] | None
    origin: str
    template_arguments: TemplateArguments = field(default_factory=dict)


def is_stepwise(value: Mapping[str, Any]) -> bool:
    """Whether a record is an answer in steps."""
    return _is_prm800k(value) or _is_shepherd(value) or isinstance(value.get("completions") or value.get("steps"), list)


def to_solutions(row: Row) -> list[Solution]:
    """The solutions of a row: one, but for PRM800K's, which has one for each wrong turning as well.

    Raises:
        DataError: In no known format, without a prompt or steps, or with labels that do not fit the steps.
    """
    value = row.value
    refuse_media(value, row.origin)
    if _is_prm800k(value):
        return _prm800k(row)
    if _is_shepherd(value):
        return [_shepherd(row)]
    key = next((key for key in ("completions", "steps") if isinstance(value.get(key), list)), None)
    prompt = None if key is None else fields.prompt(row)
    if key is None or prompt is None:
        raise DataError(
            f"this record is no answer in steps; its keys: {', '.join(map(shown, list(value)[:10]))}",
            place=row.origin,
            fix=f"Bring it into one of these formats: {'; '.join(FORMATS)}. --columns OURS=YOURS renames a column.",
            kind=UNKNOWN,
        )
    steps = value[key]
    # Steps that carry their own labels.
    if steps and all(isinstance(step, dict) for step in steps):
        texts = [next((step[name] for name in ("text", "content", "step") if name in step), None) for step in steps]
        labels = [_label(step, row) for step in steps]
        return [_solution(row, prompt, texts, labels)]
    return [_solution(row, prompt, steps, _labels(row, len(steps)))]


def _solution(row: Row, prompt: list[Message], steps: list[Any], labels: list[float | None]) -> Solution:
    texts = [step.strip() if isinstance(step, str) else "" for step in steps]
    if not texts or not all(texts):
        which = next((number for number, text in enumerate(texts, start=1) if not text), None)
        cause = "the answer has no steps" if which is None else f"step {which} is no text, or blank"
        raise DataError(cause, place=row.origin, fix="Write the missing steps, or remove the record.", kind=NO_STEPS)
    return Solution(prompt, texts, labels, fields.tools(row), row.origin, fields.template_arguments(row))


def _labels(row: Row, count: int) -> list[float | None]:
    """`labels`, one a step; or `label`, the number of the first wrong step, behind which nobody has looked."""
    value = row.value
    first = value.get("label")
    if value.get("labels") is None and isinstance(first, int) and not isinstance(first, bool):
        if not -1 <= first < count:
            raise _bad(row, f'"label" is the first wrong step, counted from 0, or -1: found {first} of {count} steps')
        # Behind the first wrong step nobody has looked: those have no label, which is not the label wrong.
        return [1.0] * count if first < 0 else [1.0] * first + [0.0] + [None] * (count - first - 1)
    labels = value.get("labels")
    if labels is None:
        return [None] * count
    if not isinstance(labels, list) or len(labels) != count:
        raise _bad(row, f'"labels" must be a list of {count}, one a step, found {shown(labels)}')
    return [_number(label, row) for label in labels]


def _label(step: Mapping[str, Any], row: Row) -> float | None:
    """Of a step that carries its own: `label`, or PRM800K's `rating`."""
    if step.get("label") is not None:
        return _number(step["label"], row)
    return None if step.get("rating") is None else _rating(step["rating"], row)


def _rating(rating: Any, row: Row) -> float | None:
    """-1 is wrong; 0, neutral, counts as right, as in arXiv:2305.20050, section 2.6."""
    if rating is None:
        return None
    if rating not in (-1, 0, 1):
        raise _bad(row, f"a rating is -1, 0 or 1, found {shown(rating)}")
    return 0.0 if rating == -1 else 1.0


def _number(label: Any, row: Row) -> float | None:
    """True, false, + and -, a number from 0 to 1; None and -100 for a step without a label."""
    if label is None or label == -100:
        return None
    if isinstance(label, str) and label.strip().lower() in _WORDS:
        return _WORDS[label.strip().lower()]
    if isinstance(label, (bool, int, float)) and math.isfinite(label) and 0 <= label <= 1:
        return float(label)
    raise _bad(row, f"a step is labelled true, false, + or -, or by a number from 0 to 1, found {shown(label)}")


def _bad(row: Row, cause: str) -> DataError:
    return DataError(cause, place=row.origin, fix="Write the missing labels, or remove the record.", kind=BAD_LABELS)


# --- PRM800K ------------------------------------------------------------------------------------------------------


def _is_prm800k(value: Mapping[str, Any]) -> bool:
    question, label = value.get("question"), value.get("label")
    return isinstance(question, dict) and isinstance(label, dict) and isinstance(label.get("steps"), list)


def _prm800k(row: Row) -> list[Solution]:
    """The path that was gone, and for each step that was written and not taken, the path up to it."""
    prompt: list[Message] = [{"role": "user", "content": str(row.value["question"].get("problem") or "")}]
    if not prompt[0]["content"].strip():
        raise DataError("the problem is empty", place=row.origin, fix="Remove the record.", kind=NO_STEPS)
    steps: list[str] = []
    labels: list[float | None] = []
    found = []
    for step in row.value["label"]["steps"]:
        written, chosen = step.get("completions") or [], step.get("chosen_completion")
        for number, other in enumerate(written):
            # Alternatives that were rated and not taken: each is a solution of its own, up to that step.
            if number != chosen:
                ends = [*steps, other["text"]], [*labels, _rating(other.get("rating"), row)]
                found.append(_solution(row, prompt, *ends))
        taken = written[chosen] if chosen is not None else step.get("human_completion")
        # The annotator gave up here, or the solution had ended with the step before.
        if taken is None:
            if steps and not written:
                found.append(_solution(row, prompt, steps, labels))
            break
        steps.append(taken["text"])
        labels.append(_rating(taken.get("rating"), row) if chosen is not None else 1.0)
    else:
        found.append(_solution(row, prompt, steps, labels))
    # A path on which nobody rated a step teaches nothing.
    labelled = [one for one in found if any(label is not None for label in one.labels)]
    if not labelled:
        raise DataError("no step has a rating", place=row.origin, fix="Remove the record.", kind=NO_STEPS)
    return labelled


# --- Math-Shepherd ------------------------------------------------------------------------------------------------


def _is_shepherd(value: Mapping[str, Any]) -> bool:
    return all(isinstance(value.get(key), str) for key in ("input", "label")) and _MARK in value["input"]


def _shepherd(row: Row) -> Solution:
    """`input`: question, "Step 1: ... ки", "Step 2: ... ки"; `label`: the same, with + or - for each ки."""
    said, labelled = row.value["input"], row.value["label"]
    begin = _SHEPHERD_STEP.search(said)
    if begin is None or not said[: begin.start()].strip():
        raise DataError('no question before "Step 1"', place=row.origin, fix="Remove the record.", kind=NO_STEPS)
    question, rest = said[: begin.start()].strip(), said[begin.start() :]
    steps = [part.strip() for part in rest.split(_MARK)]
    pieces = said.split(_MARK)
    labels, at = [], 0
    # The label has one character where the mark has two, so its place shifts with each of them.
    for piece in pieces[:-1]:
        at += len(piece)
        labels.append(labelled[at : at + 1])
        at += 1
    steps = steps[: len(labels)]
    if len(steps) != len(labels) or not set(labels) <= {"+", "-"}:
        raise _bad(row, f'"label" has + or - in the place of each {_MARK} in "input"')
    numbers: list[float | None] = [_WORDS[label] for label in labels]
    return _solution(row, [{"role": "user", "content": question}], list(steps), numbers)
