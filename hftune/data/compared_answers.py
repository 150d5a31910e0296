"""A better and a worse answer, and an answer in steps, from all the ways they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hftune.data.files import Row
from hftune.data.formats import TURNS, UNKNOWN, pair_format, placed, refuse_media, unknown_format
from hftune.data.messages import Message, parse_messages, without_weight
from hftune.data.records import (
    checked_prompt,
    read_answer,
    read_arguments,
    read_erniekit,
    read_prompt,
    read_question,
    read_tools,
    read_turns,
    refuse_weights,
    with_system,
)
from hftune.errors import DataError, shown
from hftune.template_arguments import TemplateArguments

EQUAL = "equal answers"
NO_ANSWER = "no answer of the assistant"

_SCRIPT = "run_dpo.py"
# Better first; each is one score an answer.
_SCORES = (("score_chosen", "score_rejected"), ("chosen_score", "rejected_score"), ("chosen_rating", "rejected_rating"))
_DIALOGUE = re.compile(r"(?:^|\n\n)(Human|Assistant):")


@dataclass
class Preference:
    """A prompt, which ends with a user or tool turn, and two different continuations of it."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    margin: float | None
    tools: list[dict[str, Any]] | None
    template_arguments: TemplateArguments = field(default_factory=dict)


@placed
def to_preference(row: Row) -> Preference:
    """The prompt and the two answers of a row for RM and DPO.

    Raises:
        DataError: In no known format, data for another script, a prompt that does not end with a user or tool turn, or
            two equal answers.
    """
    prompt, chosen, rejected = _parts(row)
    refuse_media(row.value)
    prompt = None if prompt is None else [_unweighted(message) for message in prompt]
    chosen, rejected = [_unweighted(message) for message in chosen], [_unweighted(message) for message in rejected]
    # Before the shared beginning is taken off, which would leave nothing of them to show.
    if chosen == rejected:
        raise DataError("the two answers are equal", fix="Remove the record.", kind=EQUAL)
    # An answer that begins with a question repeats the conversation.
    if any(message["role"] in ("system", "user") for message in (chosen[0], rejected[0])):
        prompt, chosen, rejected = _split_prompt(prompt, chosen, rejected)
    if prompt is None:
        raise unknown_format(row.value, _SCRIPT)
    # Again after splitting: the rests may be equal, or none of the assistant's.
    _check_answers(chosen, rejected)
    refuse_weights([*chosen, *rejected])
    prompt, arguments = checked_prompt(prompt), read_arguments(row)
    return Preference(prompt, chosen, rejected, _margin(row), read_tools(row), arguments)


def _parts(row: Row) -> tuple[list[Message] | None, list[Message], list[Message]]:
    """Prompt, better and worse answer. Without a prompt of its own, each answer is the whole conversation."""
    value = row.value
    found = pair_format(value)
    if found is None:
        raise unknown_format(value, _SCRIPT)
    if "sort" in found.keys:
        return _sorted_responses(row)
    # By the order of the keys in `formats.PAIRS`.
    good, bad = found.keys[-2:]
    if good in ("messages", "response"):
        return _replaced_answer(row, bad)
    prompt = read_prompt(row)
    if prompt is None and _is_dialogue(value[good]) and _is_dialogue(value[bad]):
        return None, _dialogue(row, good), _dialogue(row, bad)
    chosen, rejected = _answer(row, good, prompt), _answer(row, bad, prompt)
    if prompt and prompt[-1]["role"] == "assistant" and chosen[0]["role"] != "assistant":
        # UltraFeedback's `messages` are the better conversation once more, next to the prompt as text.
        others = {key: part for key, part in value.items() if key not in {known.keys[0] for known in TURNS}}
        prompt = read_prompt(Row(others, row.file, row.line))
    return prompt, chosen, rejected


def _answer(row: Row, key: str, prompt: list[Message] | None) -> list[Message]:
    """One of the two answers. Without a prompt column, it must be a conversation, perhaps as JSON."""
    value = row.value[key]
    if prompt is not None or not isinstance(value, str):
        return read_answer(row, key)
    if value.lstrip().startswith("["):
        return parse_messages(value, key)
    raise unknown_format(row.value, _SCRIPT)


def _replaced_answer(row: Row, key: str) -> tuple[list[Message], list[Message], list[Message]]:
    """ms-swift: the better answer ends the conversation; the worse one stands in for all behind the last question."""
    messages = read_turns(row)
    if messages is None:
        messages = read_question(row, "query") + read_answer(row, "response")
    # Turns of tools behind the question belong to the answer that called them.
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    prompt, chosen = messages[: last + 1], messages[last + 1 :]
    if key == "rejected_messages":
        rejected = with_system(row, parse_messages(row.value[key], key), key)
        return _split_prompt(None, messages, rejected)
    rejected = read_answer(row, key)
    if not chosen:
        cause = "the conversation ends with a question, so there is no better answer"
        raise DataError(cause, fix="Add the answer of the assistant.", kind=NO_ANSWER)
    return prompt, chosen, rejected


def _sorted_responses(row: Row) -> tuple[list[Message], list[Message], list[Message]]:
    """ERNIEKit: two `response`s, each a text or [answer, question, answer, ...]; the higher `sort` is better."""
    responses, ranks = row.value["response"], row.value["sort"]
    pair = isinstance(responses, list) and isinstance(ranks, list) and len(responses) == len(ranks) == 2
    if not pair or not all(_is_number(rank) for rank in ranks) or ranks[0] == ranks[1]:
        raise DataError(
            f'"response" must hold two answers and "sort" two different numbers, found {shown(ranks)}',
            fix='The answer with the higher number in "sort" is the better one, such as [1, 0].',
            kind="broken sort",
        )
    first, second = (_alternating(response) for response in responses)
    chosen, rejected = (first, second) if ranks[0] > ranks[1] else (second, first)
    return read_erniekit(row), chosen, rejected


def _alternating(response: Any) -> list[Message]:
    """[answer, question, answer, ...] or one text, as messages."""
    texts = response if isinstance(response, list) else [response]
    said = [{"role": ("assistant", "user")[index % 2], "content": text} for index, text in enumerate(texts)]
    return parse_messages(said, "response")


def _is_dialogue(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("Human:")


def _dialogue(row: Row, key: str) -> list[Message]:
    """A conversation as text, in the way of Anthropic's HH-RLHF: \\n\\nHuman: ...\\n\\nAssistant: ..."""
    _, *parts = _DIALOGUE.split("\n\n" + row.value[key].lstrip())
    said = [{"role": role.lower(), "content": text.strip()} for role, text in zip(parts[::2], parts[1::2], strict=True)]
    messages = [{**turn, "role": "user" if turn["role"] == "human" else "assistant"} for turn in said]
    return parse_messages(messages, key)


def _split_prompt(
    prompt: list[Message] | None, chosen: list[Message], rejected: list[Message]
) -> tuple[list[Message], list[Message], list[Message]]:
    """Answers that repeat the whole conversation: the prompt is what both begin with."""
    pairs = list(zip(chosen, rejected, strict=False))
    # Message by message; half of one is never taken as common.
    common = next((index for index, (left, right) in enumerate(pairs) if left != right), len(pairs))
    # The prompt ends with a question: an answer that both begin with is part of both.
    while common and chosen[common - 1]["role"] == "assistant":
        common -= 1
    shared = chosen[:common]
    # A prompt next to whole conversations (as in UltraFeedback) must be the end of what they share.
    if prompt is not None and shared[len(shared) - len(prompt) :] != prompt and shared != prompt:
        raise DataError(
            '"chosen" and "rejected" are whole conversations that do not share the prompt given with them',
            fix="Keep only the answers in them, or remove the prompt column.",
            kind="answers to different prompts",
        )
    return shared, chosen[common:], rejected[common:]


def _check_answers(chosen: list[Message], rejected: list[Message]) -> None:
    """Each answer begins and ends with an assistant turn."""
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not answer or answer[0]["role"] != "assistant" or answer[-1]["role"] != "assistant":
            found = [message["role"] for message in answer][:10] or "nothing"
            raise DataError(
                f'"{name}" must be an answer of the assistant, found {found} after the prompt',
                fix="Both answers must continue the same prompt, with an assistant turn.",
                kind=NO_ANSWER,
            )
    if chosen == rejected:
        raise DataError("the two answers are equal", fix="Remove the record.", kind=EQUAL)


def _unweighted(message: Message) -> Message:
    """A message without the weight 1: it says no more than having none, and may be on only one of two equal turns."""
    return message if message.get("weight") != 1 else without_weight(message)


def _margin(row: Row) -> float | None:
    """How much better the better answer is: `margin`, or the distance of two scores; None for neither."""
    value = row.value
    if value.get("margin") is not None:
        return _number(row, "margin")
    for good, bad in _SCORES:
        if value.get(good) is not None and value.get(bad) is not None:
            return _number(row, good) - _number(row, bad)
    ranks = value.get("sort")
    # 0 and 1 only say which answer is better; other numbers are scores (ERNIEKit's offset).
    if isinstance(ranks, list) and value.get("response") is not None and not set(ranks) <= {0, 1}:
        return float(max(ranks) - min(ranks))
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _number(row: Row, key: str) -> float:
    """A finite number of a row; CSV writes it as text."""
    number = row.value[key]
    if isinstance(number, str):
        try:
            number = float(number)
        except ValueError:
            number = None
    if not _is_number(number):
        cause = f'"{key}" must be a finite number, found {row.value[key]!r:.40}'
        raise DataError(cause, fix=f'Write a number as "{key}", or remove it.', kind="bad number")
    return float(number)


STEP_FORMATS = (
    '{"prompt", "completions": [step, ...], "labels": [true, ...]} (TRL)',
    '{"problem", "steps": [step, ...], "labels": [...]}, or "label": the number of the first wrong step, -1 for none '
    "(ProcessBench)",
)
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
    template_arguments: TemplateArguments = field(default_factory=dict)


def is_stepwise(value: Mapping[str, Any]) -> bool:
    """Whether a record is an answer in steps."""
    return isinstance(value.get("completions") or value.get("steps"), list)


@placed
def to_solution(row: Row) -> Solution:
    """The answer in steps of a row.

    Raises:
        DataError: In no known format, without a prompt or steps, or with labels that do not fit the steps.
    """
    value = row.value
    refuse_media(value)
    key = next((key for key in ("completions", "steps") if isinstance(value.get(key), list)), None)
    prompt = None if key is None else read_prompt(row)
    if key is None or prompt is None:
        raise DataError(
            f"this record is no answer in steps; its keys: {', '.join(map(shown, list(value)[:10]))}",
            fix=f"Bring it into one of these: {'; '.join(STEP_FORMATS)}. --columns OURS=YOURS renames a column. "
            "PRM800K and Math-Shepherd are on the Hub in TRL's format: trl-lib/prm800k, trl-lib/math_shepherd.",
            kind=UNKNOWN,
        )
    steps = [step.strip() if isinstance(step, str) else "" for step in value[key]]
    if not steps or not all(steps):
        cause = f"step {steps.index('') + 1} is no text, or blank" if steps else "the answer has no steps"
        raise DataError(cause, fix="Write the missing steps, or remove the record.", kind="no steps")
    labels = _step_labels(row, len(steps))
    return Solution(prompt, steps, labels, read_tools(row), read_arguments(row))


def _step_labels(row: Row, count: int) -> list[float | None]:
    """`labels`, one a step; or `label`, the number of the first wrong step, behind which nobody has looked."""
    labels, first = row.value.get("labels"), row.value.get("label")
    if labels is None and isinstance(first, int) and not isinstance(first, bool):
        if not -1 <= first < count:
            raise _bad(row, f'"label" is the first wrong step, counted from 0, or -1: found {first} of {count} steps')
        # Those behind have no label, which is not the label wrong.
        return [1.0] * count if first < 0 else [1.0] * first + [0.0] + [None] * (count - first - 1)
    if labels is None:
        return [None] * count
    if not isinstance(labels, list) or len(labels) != count:
        raise _bad(row, f'"labels" must be a list of {count}, one a step, found {shown(labels)}')
    return [_step_label(label, row) for label in labels]


def _step_label(label: Any, row: Row) -> float | None:
    """True, false, + and -, a number from 0 to 1; None and -100 for a step without a label."""
    if label is None or label == -100:
        return None
    if isinstance(label, str) and label.strip().lower() in _WORDS:
        return _WORDS[label.strip().lower()]
    if isinstance(label, (bool, int, float)) and math.isfinite(label) and 0 <= label <= 1:
        return float(label)
    raise _bad(row, f"a step is labelled true, false, + or -, or by a number from 0 to 1, found {shown(label)}")


def _bad(row: Row, cause: str) -> DataError:
    return DataError(cause, fix="Write the missing labels, or remove the record.", kind="bad labels of steps")
