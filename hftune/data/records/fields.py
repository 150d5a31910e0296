"""The parts of a record that several formats share: turns, system text, history, a question, an answer."""

from __future__ import annotations

from typing import Any

from hftune.data.readers.base import Row
from hftune.data.readers.nested_json import from_json
from hftune.data.records.content import text_of
from hftune.data.records.formats import PROMPTS, TURNS, filled, first_fit
from hftune.data.records.messages import NO_TURNS, Message, is_message, parse_messages
from hftune.data.records.tool_calls import parse_tools
from hftune.errors import DataError, shown
from hftune.template_arguments import FIELD, TemplateArguments, parse_arguments

NO_QUESTION = "empty question"
TWO_SYSTEMS = "two system texts"
BAD_HISTORY = "broken history"
BAD_LABEL = "bad label"

_SYSTEMS = ("system", "system_prompt")
_HISTORY_FIX = "Write [[question, answer], ...]."


def turns(row: Row) -> list[Message] | None:
    """The messages of the column that holds all turns, a top-level system text before them; None without one."""
    value = row.value
    # In the order of the formats, so that a record with two such columns is always read alike.
    key = next((known.keys[0] for known in TURNS if value.get(known.keys[0]) is not None), None)
    if key is None:
        return None
    return with_system(row, parse_messages(value[key], row.origin, key), key)


def with_system(row: Row, messages: list[Message], key: str) -> list[Message]:
    """The messages of column `key` behind the top-level system text, if there is one."""
    before = system(row)
    # Many exports repeat the system text in both places; only two different ones are a fault.
    if before and messages[0]["role"] == "system":
        if before[0]["content"] != messages[0]["content"]:
            cause = f'a system text next to "{key}", and another one in it'
            raise DataError(cause, place=row.origin, fix="Keep one.", kind=TWO_SYSTEMS)
        return messages
    return before + messages


def system(row: Row) -> list[Message]:
    """The top-level system text as a message; an empty list for none."""
    for key in _SYSTEMS:
        if filled(row.value, key):
            return [{"role": "system", "content": text_of(row.value[key], row.origin, f'"{key}"')}]
    return []


def tools(row: Row) -> list[dict[str, Any]] | None:
    """The functions that the record offers, from `tools`, or `functions` as OpenAI called them once."""
    value = row.value
    # An empty list of tools is an answer, too; only null leaves it to the other column.
    return parse_tools(value["tools"] if value.get("tools") is not None else value.get("functions"), row.origin)


def template_arguments(row: Row) -> TemplateArguments:
    """What the record gives the chat template besides the conversation, from `chat_template_kwargs`."""
    given = row.value.get(FIELD)
    return {} if given is None else parse_arguments(given, row.origin, DataError)


def history(row: Row) -> list[Message]:
    """Turns before the question: [[question, answer], ...] or messages, also as a string of JSON."""
    value = row.value.get("history")
    if not value:
        return []
    value = from_json(value, row.origin, '"history"', fix=_HISTORY_FIX)
    if isinstance(value, list) and value and is_message(value[0]):
        return parse_messages(value, row.origin, "history")
    if not isinstance(value, list) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in value):
        cause = '"history" must be [[question, answer], ...]'
        raise DataError(cause, place=row.origin, fix=_HISTORY_FIX, kind=BAD_HISTORY)
    # As ShareGPT would have it: what is checked there is checked here as well.
    spoken = [part for pair in value for part in zip(("user", "assistant"), pair, strict=True)]
    said = [{"role": role, "content": text} for role, text in spoken]
    return parse_messages(said, row.origin, "history") if said else []


def question(row: Row, key: str) -> list[Message]:
    """The column `key` (text or messages), with `input`, system and history around it."""
    value = row.value[key]
    if isinstance(value, list) and value and is_message(value[0]):
        return with_system(row, parse_messages(value, row.origin, key), key)
    text = text_of(value, row.origin, f'"{key}"', missing_ok=True)
    # Alpaca's `input` belongs to its `instruction` alone; next to a `prompt` it is a column of its own meaning.
    more = text_of(row.value.get("input"), row.origin, '"input"', missing_ok=True) if key == "instruction" else ""
    question = "\n".join(part for part in (text, more) if part.strip())
    if not question:
        raise DataError(f'"{key}" is empty', place=row.origin, fix="Fill it or remove the record.", kind=NO_QUESTION)
    return [*system(row), *history(row), {"role": "user", "content": question}]


def answer(row: Row, key: str) -> list[Message]:
    """An answer: text, one message, or a list of messages."""
    value = row.value[key]
    # An empty list goes the same way, for its message.
    if isinstance(value, list) and (not value or is_message(value[0])):
        return parse_messages(value, row.origin, key)
    return parse_messages([value if is_message(value) else {"role": "assistant", "content": value}], row.origin, key)


def prompt(row: Row) -> list[Message] | None:
    """What comes before an answer, from any column that may hold it; None if there is none."""
    found = first_fit(row.value, PROMPTS)
    if found is None:
        return None
    key = found.keys[0]
    if found in TURNS:
        return turns(row)
    return erniekit(row) if key == "src" else question(row, key)


def erniekit(row: Row) -> list[Message]:
    """ERNIEKit's `src` and `tgt`, lists of questions and answers in turn; `label` says which answers are trained."""
    asked, said = _texts(row, "src"), _texts(row, "tgt")
    # One answer fewer: the last question waits for one, as in a prompt.
    if not len(asked) - 1 <= len(said) <= len(asked):
        raise DataError(
            f'"src" has {len(asked)} questions and "tgt" {len(said)} answers',
            place=row.origin,
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
    return with_system(row, parse_messages(messages, row.origin, "src and tgt"), "src")


def _texts(row: Row, key: str) -> list[Any]:
    """A list of texts, also written as a single one, or as JSON."""
    value = row.value.get(key)
    # Tables hold lists as text.
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = from_json(value, row.origin, f'"{key}"', fix="Write a list of texts.")
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
            place=row.origin,
            fix="Write 1 for an answer that is trained, 0 for one that is not.",
            kind=BAD_LABEL,
        )
    return value
