"""Conversations, texts, labelled answers and prompts of records, from all the ways they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hftune.data.files import Row
from hftune.data.formats import (
    ASKS,
    CONVERSATIONS,
    KTO,
    LABELLED,
    PROMPTS,
    TURNS,
    filled,
    first_fit,
    has_text,
    is_labelled,
    note_unread,
    pair_format,
    placed,
    refuse_media,
    unknown_format,
    wrong_stage,
)
from hftune.data.messages import BAD_WEIGHT, NO_TURNS, THOUGHTS_KEYS, Message, is_message, parse_messages, text_of
from hftune.data.strict_json import from_json
from hftune.data.tool_calls import parse_tools
from hftune.errors import DataError, shown
from hftune.template_arguments import FIELD, TemplateArguments, parse_arguments

BAD_LABEL = "bad label"

_SYSTEMS = ("system", "system_prompt")
_HISTORY_FIX = "Write [[question, answer], ...]."


def read_turns(row: Row) -> list[Message] | None:
    """The messages of the column that holds all turns, a top-level system text before them; None without one."""
    value = row.value
    # In the order of the formats, so that a record with two such columns is always read alike.
    key = next((known.keys[0] for known in TURNS if value.get(known.keys[0]) is not None), None)
    if key is None:
        return None
    return with_system(row, parse_messages(value[key], key), key)


def with_system(row: Row, messages: list[Message], key: str) -> list[Message]:
    """The messages of column `key` behind the top-level system text, if there is one."""
    before = read_system(row)
    # Many exports repeat the system text in both places; only two different ones are a fault.
    if before and messages[0]["role"] == "system":
        if before[0]["content"] != messages[0]["content"]:
            cause = f'a system text next to "{key}", and another one in it'
            raise DataError(cause, fix="Keep one.", kind="two system texts")
        return messages
    return before + messages


def read_system(row: Row) -> list[Message]:
    """The top-level system text as a message; an empty list for none."""
    for key in _SYSTEMS:
        if filled(row.value, key):
            return [{"role": "system", "content": text_of(row.value[key], f'"{key}"')}]
    return []


def read_tools(row: Row) -> list[dict[str, Any]] | None:
    """The functions that the record offers, from `tools`, or `functions` as OpenAI called them once."""
    value = row.value
    # An empty list of tools is an answer, too; only null leaves it to the other column.
    return parse_tools(value["tools"] if value.get("tools") is not None else value.get("functions"))


def read_arguments(row: Row) -> TemplateArguments:
    """What the record gives the chat template besides the conversation, from `chat_template_kwargs`."""
    given = row.value.get(FIELD)
    return {} if given is None else parse_arguments(given, FIELD, DataError)


def read_history(row: Row) -> list[Message]:
    """Turns before the question: [[question, answer], ...] or messages, also as a string of JSON."""
    value = row.value.get("history")
    if not value:
        return []
    value = from_json(value, '"history"', fix=_HISTORY_FIX)
    if isinstance(value, list) and value and is_message(value[0]):
        return parse_messages(value, "history")
    if not isinstance(value, list) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value):
        cause = '"history" must be [[question, answer], ...]'
        raise DataError(cause, fix=_HISTORY_FIX, kind="broken history")
    # As ShareGPT would have it: what is checked there is checked here as well.
    spoken = [part for pair in value for part in zip(("user", "assistant"), pair, strict=True)]
    said = [{"role": role, "content": text} for role, text in spoken]
    return parse_messages(said, "history") if said else []


def read_question(row: Row, key: str) -> list[Message]:
    """The column `key` (text or messages), with `input`, system and history around it."""
    value = row.value[key]
    if isinstance(value, list) and value and is_message(value[0]):
        return with_system(row, parse_messages(value, key), key)
    text = text_of(value, f'"{key}"', missing_ok=True)
    # Alpaca's `input` belongs to its `instruction` alone; next to a `prompt` it is a column of its own meaning.
    more = text_of(row.value.get("input"), '"input"', missing_ok=True) if key == "instruction" else ""
    question = "\n".join(part for part in (text, more) if part.strip())
    if not question:
        raise DataError(f'"{key}" is empty', fix="Fill it or remove the record.", kind="empty question")
    return [*read_system(row), *read_history(row), {"role": "user", "content": question}]


def read_answer(row: Row, key: str) -> list[Message]:
    """An answer: text, one message, or a list of messages."""
    value = row.value[key]
    # An empty list goes the same way, for its message.
    if isinstance(value, list) and (not value or is_message(value[0])):
        return parse_messages(value, key)
    return parse_messages([value if is_message(value) else {"role": "assistant", "content": value}], key)


def read_prompt(row: Row) -> list[Message] | None:
    """What comes before an answer, from any column that may hold it; None if there is none."""
    found = first_fit(row.value, PROMPTS)
    if found is None:
        return None
    key = found.keys[0]
    if found in TURNS:
        return read_turns(row)
    return read_erniekit(row) if key == "src" else read_question(row, key)


def read_erniekit(row: Row) -> list[Message]:
    """ERNIEKit's `src` and `tgt`, lists of questions and answers in turn; `label` says which answers are trained."""
    asked, said = _texts(row, "src"), _texts(row, "tgt")
    # One answer fewer: the last question waits for one, as in a prompt.
    if not len(asked) - 1 <= len(said) <= len(asked):
        raise DataError(
            f'"src" has {len(asked)} questions and "tgt" {len(said)} answers',
            fix="Write an answer for each question; for a prompt, leave out the last one.",
            kind=NO_TURNS,
        )
    messages: list[dict[str, Any]] = []
    weights = _labels(row, len(said))
    for index, question in enumerate(asked):
        messages.append({"role": "user", "content": question})
        if index < len(said):
            weight = {} if weights is None else {"weight": weights[index]}
            messages.append({"role": "assistant", "content": said[index], **weight})
    return with_system(row, parse_messages(messages, "src and tgt"), "src")


def _texts(row: Row, key: str) -> list[Any]:
    """A list of texts, also written as a single one, or as JSON."""
    value = row.value.get(key)
    # Tables hold lists as text.
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = from_json(value, f'"{key}"', fix="Write a list of texts.")
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _labels(row: Row, count: int) -> list[Any] | None:
    """ERNIEKit's `label`, a 0 or 1 for each answer."""
    value = row.value.get("label")
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count:
        raise DataError(
            f'"label" must be a list of {count} weights, one for each answer in "tgt", found {shown(value)}',
            fix="Write 1 for an answer that is trained, 0 for one that is not.",
            kind=BAD_LABEL,
        )
    return value


NO_ASSISTANT = "no assistant turn"


@dataclass
class Conversation:
    """Messages to train on (at least one assistant turn that is), and the tools offered."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    template_arguments: TemplateArguments = field(default_factory=dict)


@placed
def to_conversation(row: Row) -> Conversation:
    """The conversation of a row for SFT, in any format of `formats.CONVERSATIONS`.

    Raises:
        DataError: In none of these formats, data for another script, no assistant turn, or none that is trained.
    """
    value = row.value
    # First of all: a worse answer, or one labelled bad, must not be learned as an example.
    if pair_format(value) or is_labelled(value):
        raise wrong_stage(value, "run_sft.py")
    refuse_media(value)
    found = first_fit(value, CONVERSATIONS)
    if found is None:
        raise unknown_format(value, "run_sft.py")
    messages = read_conversation(row, found.keys)
    if not THOUGHTS_KEYS.isdisjoint(value):
        # They may be the model's thoughts, or somebody's about the answer.
        for key in (key for key in THOUGHTS_KEYS if has_text(value.get(key))):
            note_unread(f'the column "{key}"')
    # Before anything is rendered: a record without a target would cost a tokenisation to find out.
    weights = [message.get("weight", 1.0) for message in messages if message["role"] == "assistant"]
    if not weights:
        raise DataError(
            "the conversation has no assistant turn, so there is nothing to learn",
            fix="Add the answer. Prompts without answers are data for run_rl.py.",
            kind=NO_ASSISTANT,
        )
    if not any(weights):
        raise DataError(
            "every assistant turn has the weight 0, so there is nothing to learn",
            fix="Remove the record, or the weight of the turn that is to be trained.",
            kind="no trained turn",
        )
    return Conversation(messages, read_tools(row), read_arguments(row))


READERS: dict[tuple[str, ...], Callable[[Row], list[Message]]] = {
    ("src", "tgt"): read_erniekit,
}
"""How formats are read that are neither one column of turns nor a question and its answer."""


def read_conversation(row: Row, keys: tuple[str, ...]) -> list[Message]:
    """The messages of a row in the format of `CONVERSATIONS` that has these keys."""
    if keys in READERS:
        return READERS[keys](row)
    turns = read_turns(row) if len(keys) == 1 else None
    return turns or read_question(row, keys[0]) + read_answer(row, keys[-1])


@placed
def to_text(row: Row) -> str:
    """The text of a row for pre-training: its `text`, its `content`, or a conversation of one assistant turn.

    Raises:
        DataError: None of them is there, or it is blank.
    """
    value = row.value
    # A single turn of a conversation has a `content` that looks like a text for pre-training.
    if pair_format(value) or is_message(value):
        raise unknown_format(value, "run_pt.py")
    refuse_media(value)
    # Before `content`: null columns of tables count as absent.
    if value.get("messages") is not None and value.get("text") is None:
        return _lone_turn(row)
    key = next((key for key in ("text", "content") if value.get(key) is not None), None)
    if key is None:
        raise unknown_format(value, "run_pt.py")
    text = text_of(value[key], f'"{key}"')
    if not text or text.isspace():
        raise DataError(f'"{key}" is blank', fix="Remove the record.", kind="blank text")
    return text


def _lone_turn(row: Row) -> str:
    """ms-swift's way to write text: messages that are one assistant turn."""
    messages = parse_messages(row.value["messages"], "messages")
    if len(messages) != 1 or messages[0]["role"] != "assistant" or messages[0].get("tool_calls"):
        raise unknown_format(row.value, "run_pt.py")
    content: str = messages[0]["content"]
    return content


# The label of an answer, by its name; TRL and ms-swift, LLaMA-Factory.
_LABELS = ("kto_tag", "label")


@dataclass
class Labelled:
    """A prompt, which ends with a user or tool turn, one answer to it, and whether the answer is good (KTO)."""

    prompt: list[Message]
    completion: list[Message]
    label: bool
    tools: list[dict[str, Any]] | None
    template_arguments: TemplateArguments = field(default_factory=dict)


@placed
def to_labelled(row: Row) -> Labelled:
    """The prompt, the answer and the label of a row for training on unpaired labels (KTO).

    Raises:
        DataError: In no known format, a label that is not true or false, or no answer after the prompt.
    """
    value = row.value
    if pair_format(value):
        raise wrong_stage(value, KTO)
    found = first_fit(value, LABELLED)
    if found is None:
        raise unknown_format(value, KTO)
    refuse_media(value)
    # Without the label, the record is one of the formats for SFT, and is read as such.
    key = next(key for key in _LABELS if key in found.keys)
    messages = read_conversation(row, found.keys[:-1])
    # Everything behind the last question is the answer: with calls and results of tools, several turns.
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    if last + 1 == len(messages) or last < 0:
        cause = "the record has no answer that the label could be about"
        raise DataError(cause, fix="Add the question and the answer.", kind=NO_ASSISTANT)
    prompt, completion = messages[: last + 1], messages[last + 1 :]
    refuse_weights(completion)
    label = _label(value[key], key)
    return Labelled(prompt, completion, label, read_tools(row), read_arguments(row))


def _label(value: Any, key: str) -> bool:
    """true or false, also as 1 and 0, and in tables as words or as 1.0 and 0.0."""
    known = {"true": True, "false": False, "1": True, "0": False}
    found = known.get(str(value).strip().lower().removesuffix(".0")) if isinstance(value, (int, float, str)) else None
    if found is None:
        cause = f'"{key}" must be true or false, found {value!r:.40}'
        raise DataError(cause, fix="true: a good answer, false: a bad one.", kind=BAD_LABEL)
    return found


def refuse_weights(answer: list[Message]) -> None:
    """Refuse answers that are to be trained in part: a pair or a label is about all of an answer.

    Raises:
        DataError: A turn with a weight other than 1.
    """
    for message in answer:
        if message.get("weight", 1) != 1:
            raise DataError(
                f"an answer with the weight {message['weight']}; pairs and labels are about whole answers",
                fix="Remove the weight.",
                kind=BAD_WEIGHT,
            )


def checked_prompt(prompt: list[Message]) -> list[Message]:
    """The prompt, if someone is waiting for an answer at its end.

    Raises:
        DataError: It is empty, or ends with a turn of the assistant or the system.
    """
    if not prompt or prompt[-1]["role"] not in ("user", "tool"):
        found = f"a turn of {prompt[-1]['role']}" if prompt else "nothing"
        raise DataError(
            f"the prompt must end with a turn of user or tool, found {found}",
            fix="Remove what follows the last question, or add the question.",
            kind="prompt without a question at its end",
        )
    return prompt


# What a prompt is made of. Everything else in a row for RL, such as "answer", reaches the reward functions.
_PROMPT_KEYS = frozenset(
    ("conversations", "messages", "conversation", *ASKS, "input", "src", "tgt", "system", "system_prompt", "history")
) | {FIELD}


@dataclass
class Prompt:
    """Messages that end with a user or tool turn, and all other columns of the row."""

    messages: list[Message]
    extra: dict[str, Any] = field(default_factory=dict)
    template_arguments: TemplateArguments = field(default_factory=dict)


@placed
def to_prompt(row: Row) -> Prompt:
    """The prompt of a row for RL; SFT formats lose the answer after the last user turn.

    Raises:
        DataError: No prompt in any known format.
    """
    prompt = read_prompt(row)
    if prompt is None:
        raise unknown_format(row.value, "run_rl.py")
    refuse_media(row.value)
    # Data for SFT serve as prompts: what is behind the last question is for the model to say.
    while prompt and prompt[-1]["role"] == "assistant":
        prompt.pop()
    extra = {key: value for key, value in row.value.items() if key not in _PROMPT_KEYS}
    return Prompt(checked_prompt(prompt), extra, read_arguments(row))
