"""Recognise the schema of a row and turn it into one canonical form; the first format that fits, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hftune.data.readers.base import Row
from hftune.data.records import fields
from hftune.data.records.content import text_of
from hftune.data.records.formats import (
    ASKS,
    CONVERSATIONS,
    FORMATS,
    KTO,
    LABELLED,
    PROMPTS,
    Format,
    filled,
    first_fit,
    is_labelled,
    pair_format,
    refuse_media,
    script_for,
    unknown_format,
    wrong_stage,
)
from hftune.data.records.messages import Message, is_message, parse_messages
from hftune.data.records.preferences import Preference, checked_prompt, refuse_weights, to_preference
from hftune.errors import DataError

__all__ = [
    "Conversation",
    "Labelled",
    "Preference",
    "Prompt",
    "describe_format",
    "to_conversation",
    "to_labelled",
    "to_preference",
    "to_prompt",
    "to_text",
]

BLANK = "blank text"
NO_ASSISTANT = "no assistant turn"
NOTHING_TRAINED = "no trained turn"
BAD_LABEL = fields.BAD_LABEL

# What a prompt is made of. Everything else in a row for RL, such as "answer", reaches the reward functions.
_PROMPT_KEYS = frozenset(
    ("conversations", "messages", "conversation", *ASKS, "input", "src", "tgt", "system", "system_prompt", "history")
)
# The label of an answer, by its name; TRL and ms-swift, LLaMA-Factory.
_LABELS = ("kto_tag", "label")


@dataclass
class Conversation:
    """Messages to train on (at least one assistant turn that is), and the tools offered."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    origin: str


@dataclass
class Prompt:
    """Messages that end with a user or tool turn, and all other columns of the row."""

    messages: list[Message]
    extra: dict[str, Any] = field(default_factory=dict)
    origin: str = ""


@dataclass
class Labelled:
    """A prompt, which ends with a user or tool turn, one answer to it, and whether the answer is good (KTO)."""

    prompt: list[Message]
    completion: list[Message]
    label: bool
    tools: list[dict[str, Any]] | None
    origin: str


# --- text ---------------------------------------------------------------------------------------------------------


def to_text(row: Row) -> str:
    """The text of a row for pre-training: its `text`, its `content`, or a conversation of one assistant turn.

    Raises:
        DataError: None of them is there, or it is blank.
    """
    value, origin = row.value, row.origin
    if pair_format(value) or is_message(value):
        raise unknown_format(value, origin, "run_pt.py")
    refuse_media(value, origin)
    if value.get("messages") is not None and value.get("text") is None:
        return _lone_turn(row)
    key = next((key for key in ("text", "content") if value.get(key) is not None), None)
    if key is None:
        raise unknown_format(value, origin, "run_pt.py")
    text = text_of(value[key], origin, f'"{key}"')
    if not text or text.isspace():
        raise DataError(f'"{key}" is blank', place=origin, fix="Remove the record.", kind=BLANK)
    return text


def _lone_turn(row: Row) -> str:
    """ms-swift's way to write text: messages that are one assistant turn."""
    messages = parse_messages(row.value["messages"], row.origin, "messages")
    if len(messages) != 1 or messages[0]["role"] != "assistant" or messages[0].get("tool_calls"):
        raise unknown_format(row.value, row.origin, "run_pt.py")
    content: str = messages[0]["content"]
    return content


# --- conversations ------------------------------------------------------------------------------------------------


def to_conversation(row: Row) -> Conversation:
    """The conversation of a row for SFT, in any format of `formats.CONVERSATIONS`.

    Raises:
        DataError: In none of these formats, data for another script, no assistant turn, or none that is trained.
    """
    value, origin = row.value, row.origin
    if pair_format(value) or is_labelled(value):
        raise wrong_stage(value, origin, "run_sft.py")
    refuse_media(value, origin)
    found = first_fit(value, CONVERSATIONS)
    if found is None:
        raise unknown_format(value, origin, "run_sft.py")
    messages = _READERS[found.keys](row)
    weights = [message.get("weight", 1.0) for message in messages if message["role"] == "assistant"]
    if not weights:
        raise DataError(
            "the conversation has no assistant turn, so there is nothing to learn",
            place=origin,
            fix="Add the answer. Prompts without answers are data for run_rl.py.",
            kind=NO_ASSISTANT,
        )
    if not any(weights):
        raise DataError(
            "every assistant turn has the weight 0, so there is nothing to learn",
            place=origin,
            fix="Remove the record, or the weight of the turn that is to be trained.",
            kind=NOTHING_TRAINED,
        )
    return Conversation(messages, fields.tools(row), origin)


def _asked_and_answered(row: Row, question: str, answer: str) -> list[Message]:
    return fields.question(row, question) + fields.answer(row, answer)


def _turns(row: Row) -> list[Message]:
    messages = fields.turns(row)
    assert messages is not None, "the format was recognised by these columns"
    return messages


_READERS: dict[tuple[str, ...], Callable[[Row], list[Message]]] = {
    known.keys: partial(_asked_and_answered, question=known.keys[0], answer=known.keys[-1]) for known in CONVERSATIONS
} | {("conversations",): _turns, ("messages",): _turns, ("conversation",): _turns, ("src", "tgt"): fields.erniekit}


# --- prompts and labels -------------------------------------------------------------------------------------------


def to_prompt(row: Row) -> Prompt:
    """The prompt of a row for RL; SFT formats lose the answer after the last user turn.

    Raises:
        DataError: No prompt in any known format.
    """
    prompt = fields.prompt(row)
    if prompt is None:
        raise unknown_format(row.value, row.origin, "run_rl.py")
    refuse_media(row.value, row.origin)
    while prompt and prompt[-1]["role"] == "assistant":
        prompt.pop()
    extra = {key: value for key, value in row.value.items() if key not in _PROMPT_KEYS}
    return Prompt(checked_prompt(prompt, row.origin), extra, row.origin)


def to_labelled(row: Row) -> Labelled:
    """The prompt, the answer and the label of a row for training on unpaired labels (KTO).

    Raises:
        DataError: In no known format, a label that is not true or false, or no answer after the prompt.
    """
    value, origin = row.value, row.origin
    if pair_format(value):
        raise wrong_stage(value, origin, KTO)
    found = first_fit(value, LABELLED)
    if found is None:
        raise unknown_format(value, origin, KTO)
    refuse_media(value, origin)
    key = next(key for key in _LABELS if key in found.keys)
    messages = _READERS[found.keys[:-1]](row)
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    if last + 1 == len(messages) or last < 0:
        cause = "the record has no answer that the label could be about"
        raise DataError(cause, place=origin, fix="Add the question and the answer.", kind=NO_ASSISTANT)
    prompt, completion = messages[: last + 1], messages[last + 1 :]
    refuse_weights(completion, origin)
    return Labelled(prompt, completion, _label(value[key], key, origin), fields.tools(row), origin)


def _label(value: Any, key: str, origin: str) -> bool:
    """true or false, also as 1 and 0, and in tables as words or as 1.0 and 0.0."""
    known = {"true": True, "false": False, "1": True, "0": False}
    found = known.get(str(value).strip().lower().removesuffix(".0")) if isinstance(value, (int, float, str)) else None
    if found is None:
        cause = f'"{key}" must be true or false, found {value!r:.40}'
        raise DataError(cause, place=origin, fix="true: a good answer, false: a bad one.", kind=BAD_LABEL)
    return found


# --- what a record was taken for ----------------------------------------------------------------------------------


def describe_format(value: dict[str, Any], script: str) -> str:
    """In a line, which format `script` takes a record for, by which columns, and what else of it is used.

    Args:
        script: A key of `formats.FORMATS`, such as "run_sft.py"; run_rm.py is read like run_dpo.py.
    """
    script = "run_dpo.py" if script == "run_rm.py" else script
    found = _recognised(value, script)
    if found is None:
        home = script_for(value)
        return f"no format that {script} reads" + (f"; it looks like data for {home}" if home else "")
    extras = [key for key in ("system", "system_prompt", "history", "tools", "functions") if filled(value, key)]
    if "instruction" in found.keys and filled(value, "input"):
        extras.append("input")
    used = f", with {', '.join(extras)}" if extras else ""
    columns = " and ".join(f'"{key}"' for key in found.keys)
    left = sorted(set(value) - set(found.keys) - set(extras))
    unused = f"; not used: {', '.join(left[:8])}{', ...' if len(left) > 8 else ''}" if left else ""
    if script == "run_rl.py":
        unused = f"; for the reward functions: {', '.join(left[:8])}" if left else ""
    return f"{found.name}, because it has {columns}{used}{unused}"


def _recognised(value: dict[str, Any], script: str) -> Format | None:
    """The format by which the record is read, in the order in which the functions above look for it."""
    pair = pair_format(value)
    if script == "run_dpo.py":
        asked = first_fit(value, PROMPTS)
        if pair and asked and not set(asked.keys) & set(pair.keys):
            return Format(f"{pair.name} after {asked.name}", (*asked.keys, *pair.keys))
        return pair
    if script == "run_rl.py":
        return first_fit(value, PROMPTS)
    if pair or (script == "run_sft.py" and is_labelled(value)):
        return None
    return first_fit(value, FORMATS[script])
