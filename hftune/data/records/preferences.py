"""A better and a worse answer to one prompt, from all the ways they are written."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from hftune.data.readers.base import Row
from hftune.data.records import fields
from hftune.data.records.content import NOT_TEXT
from hftune.data.records.formats import TURNS, pair_format, refuse_media, unknown_format
from hftune.data.records.messages import BAD_WEIGHT, Message, parse_messages, without_weight
from hftune.errors import DataError, shown
from hftune.template_arguments import TemplateArguments

EQUAL = "equal answers"
NO_SHARED_PROMPT = "answers to different prompts"
NO_ANSWER = "no answer of the assistant"
BAD_PROMPT = "prompt without a question at its end"
BAD_NUMBER = "bad number"
BAD_SORT = "broken sort"

_SCRIPT = "run_dpo.py"
# Better first; each is one score an answer.
_SCORES = (
    ("score_chosen", "score_rejected"),
    ("chosen_score", "rejected_score"),
    ("chosen_rating", "rejected_rating"),
)
_DIALOGUE = re.compile(r"(?:^|\n\n)(Human|Assistant):")


@dataclass
class Preference:
    """A prompt, which ends with a user or tool turn, and two different continuations of it."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    margin: float | None
    tools: list[dict[str, Any]] | None
    origin: str
    template_arguments: TemplateArguments = field(default_factory=dict)


def to_preference(row: Row) -> Preference:
    """The prompt and the two answers of a row for RM and DPO.

    Raises:
        DataError: In no known format, data for another script, a prompt that does not end with a user or tool turn, or
            two equal answers.
    """
    origin = row.origin
    prompt, chosen, rejected = _parts(row)
    refuse_media(row.value, origin)
    prompt = None if prompt is None else [_unweighted(message) for message in prompt]
    chosen, rejected = [_unweighted(message) for message in chosen], [_unweighted(message) for message in rejected]
    # Before the shared beginning is taken off, which would leave nothing of them to show.
    if chosen == rejected:
        raise DataError("the two answers are equal", place=origin, fix="Remove the record.", kind=EQUAL)
    # An answer that begins with a question repeats the conversation.
    if any(message["role"] in ("system", "user") for message in (chosen[0], rejected[0])):
        prompt, chosen, rejected = _split_prompt(prompt, chosen, rejected, origin)
    if prompt is None:
        raise unknown_format(row.value, origin, _SCRIPT)
    # Again after splitting: the rests may be equal, or none of the assistant's.
    _check_answers(chosen, rejected, origin)
    refuse_weights([*chosen, *rejected], origin)
    prompt, arguments = checked_prompt(prompt, origin), fields.template_arguments(row)
    return Preference(prompt, chosen, rejected, _margin(row), fields.tools(row), origin, arguments)


def _parts(row: Row) -> tuple[list[Message] | None, list[Message], list[Message]]:
    """Prompt, better and worse answer. Without a prompt of its own, each answer is the whole conversation."""
    value = row.value
    found = pair_format(value)
    if found is None:
        if isinstance(value.get("output"), list) and value.get("instruction") is not None:
            return _two_outputs(row)
        raise unknown_format(value, row.origin, _SCRIPT)
    if "sort" in found.keys:
        return _sorted_responses(row)
    # By the order of the keys in `formats.PAIRS`.
    good, bad = found.keys[-2:]
    if good in ("messages", "response"):
        return _replaced_answer(row, bad)
    prompt = fields.prompt(row)
    if prompt is None and _is_dialogue(value[good]) and _is_dialogue(value[bad]):
        return None, _dialogue(row, good), _dialogue(row, bad)
    chosen, rejected = _answer(row, good, prompt), _answer(row, bad, prompt)
    if prompt and prompt[-1]["role"] == "assistant" and chosen[0]["role"] != "assistant":
        # UltraFeedback's `messages` are the better conversation once more, next to the prompt as text.
        others = {key: part for key, part in value.items() if key not in {known.keys[0] for known in TURNS}}
        prompt = fields.prompt(Row(others, row.file, row.line))
    return prompt, chosen, rejected


def _answer(row: Row, key: str, prompt: list[Message] | None) -> list[Message]:
    """One of the two answers. Without a prompt column, it must be a conversation, perhaps as JSON."""
    value = row.value[key]
    if prompt is not None or not isinstance(value, str):
        return fields.answer(row, key)
    if value.lstrip().startswith("["):
        return parse_messages(value, row.origin, key)
    raise unknown_format(row.value, row.origin, _SCRIPT)


def _replaced_answer(row: Row, key: str) -> tuple[list[Message], list[Message], list[Message]]:
    """ms-swift: the better answer ends the conversation; the worse one stands in for all behind the last question."""
    messages = fields.turns(row)
    if messages is None:
        messages = fields.question(row, "query") + fields.answer(row, "response")
    # Turns of tools behind the question belong to the answer that called them.
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    prompt, chosen = messages[: last + 1], messages[last + 1 :]
    if key == "rejected_messages":
        rejected = fields.with_system(row, parse_messages(row.value[key], row.origin, key), key)
        return _split_prompt(None, messages, rejected, row.origin)
    rejected = fields.answer(row, key)
    if not chosen:
        cause = "the conversation ends with a question, so there is no better answer"
        raise DataError(cause, place=row.origin, fix="Add the answer of the assistant.", kind=NO_ANSWER)
    return prompt, chosen, rejected


def _sorted_responses(row: Row) -> tuple[list[Message], list[Message], list[Message]]:
    """ERNIEKit: two `response`s, each a text or [answer, question, answer, ...]; the higher `sort` is better."""
    responses, ranks = row.value["response"], row.value["sort"]
    pair = isinstance(responses, list) and isinstance(ranks, list) and len(responses) == len(ranks) == 2
    if not pair or not all(_is_number(rank) for rank in ranks) or ranks[0] == ranks[1]:
        raise DataError(
            f'"response" must hold two answers and "sort" two different numbers, found {shown(ranks)}',
            place=row.origin,
            fix='The answer with the higher number in "sort" is the better one, such as [1, 0].',
            kind=BAD_SORT,
        )
    first, second = (_alternating(response, row.origin) for response in responses)
    chosen, rejected = (first, second) if ranks[0] > ranks[1] else (second, first)
    return fields.erniekit(row), chosen, rejected


def _alternating(response: Any, origin: str) -> list[Message]:
    """[answer, question, answer, ...] or one text, as messages."""
    texts = response if isinstance(response, list) else [response]
    said = [{"role": ("assistant", "user")[index % 2], "content": text} for index, text in enumerate(texts)]
    return parse_messages(said, origin, "response")


def _two_outputs(row: Row) -> tuple[list[Message], list[Message], list[Message]]:
    """LLaMA-Factory's first format of pairs: Alpaca whose `output` is [better, worse]."""
    outputs = row.value["output"]
    if len(outputs) != 2 or not all(isinstance(output, str) for output in outputs):
        cause = f'"output" must be a list of the better and the worse answer, found {len(outputs)} entries'
        raise DataError(cause, place=row.origin, fix="Write two texts.", kind=NOT_TEXT)
    chosen, rejected = (
        parse_messages([{"role": "assistant", "content": output}], row.origin, "output") for output in outputs
    )
    return fields.question(row, "instruction"), chosen, rejected


def _is_dialogue(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith("Human:")


def _dialogue(row: Row, key: str) -> list[Message]:
    """A conversation as text, in the way of Anthropic's HH-RLHF: \\n\\nHuman: ...\\n\\nAssistant: ..."""
    _, *parts = _DIALOGUE.split("\n\n" + row.value[key].lstrip())
    said = [{"role": role.lower(), "content": text.strip()} for role, text in zip(parts[::2], parts[1::2], strict=True)]
    messages = [{**turn, "role": "user" if turn["role"] == "human" else "assistant"} for turn in said]
    return parse_messages(messages, row.origin, key)


def _split_prompt(
    prompt: list[Message] | None, chosen: list[Message], rejected: list[Message], origin: str
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
            place=origin,
            fix="Keep only the answers in them, or remove the prompt column.",
            kind=NO_SHARED_PROMPT,
        )
    return shared, chosen[common:], rejected[common:]


def _check_answers(chosen: list[Message], rejected: list[Message], origin: str) -> None:
    """Each answer begins and ends with an assistant turn."""
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not answer or answer[0]["role"] != "assistant" or answer[-1]["role"] != "assistant":
            found = [message["role"] for message in answer][:10] or "nothing"
            raise DataError(
                f'"{name}" must be an answer of the assistant, found {found} after the prompt',
                place=origin,
                fix="Both answers must continue the same prompt, with an assistant turn.",
                kind=NO_ANSWER,
            )
    if chosen == rejected:
        raise DataError("the two answers are equal", place=origin, fix="Remove the record.", kind=EQUAL)


def _unweighted(message: Message) -> Message:
    """A message without the weight 1: it says no more than having none, and may be on only one of two equal turns."""
    return message if message.get("weight") != 1 else without_weight(message)


def refuse_weights(answer: list[Message], origin: str) -> None:
    """Refuse answers that are to be trained in part: a pair or a label is about all of an answer.

    Raises:
        DataError: A turn with a weight other than 1.
    """
    for message in answer:
        if message.get("weight", 1) != 1:
            raise DataError(
                f"an answer with the weight {message['weight']}; pairs and labels are about whole answers",
                place=origin,
                fix="Remove the weight.",
                kind=BAD_WEIGHT,
            )


def checked_prompt(prompt: list[Message], origin: str) -> list[Message]:
    """The prompt, if someone is waiting for an answer at its end.

    Raises:
        DataError: It is empty, or ends with a turn of the assistant or the system.
    """
    if not prompt or prompt[-1]["role"] not in ("user", "tool"):
        found = f"a turn of {prompt[-1]['role']}" if prompt else "nothing"
        raise DataError(
            f"the prompt must end with a turn of user or tool, found {found}",
            place=origin,
            fix="Remove what follows the last question, or add the question.",
            kind=BAD_PROMPT,
        )
    return prompt


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
        raise DataError(cause, place=row.origin, fix=f'Write a number as "{key}", or remove it.', kind=BAD_NUMBER)
    return float(number)
