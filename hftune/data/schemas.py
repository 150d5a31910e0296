"""Recognise the schema of a row and turn it into one canonical form; the first format that fits, in a fixed order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hftune.data.formats import filled, is_preference, unknown_format, wrong_stage
from hftune.data.messages import Message, is_message, parse_messages, parse_tools, text_of
from hftune.data.sources import Row
from hftune.errors import DataError

_TURNS = ("conversations", "messages")
_ASKS = ("prompt", "question", "instruction", "query")
# What a prompt is made of. Everything else in a row for RL, such as "answer", reaches the reward functions.
_PROMPT_KEYS = frozenset((*_TURNS, *_ASKS, "input", "system", "system_prompt", "history"))


@dataclass
class Conversation:
    """Messages to train on (at least one assistant turn), and the tools offered."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    origin: str


@dataclass
class Preference:
    """A prompt, which ends with a user or tool turn, and two different continuations of it."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    margin: float | None
    tools: list[dict[str, Any]] | None
    origin: str


@dataclass
class Prompt:
    """Messages that end with a user or tool turn, and all other columns of the row."""

    messages: list[Message]
    extra: dict[str, Any] = field(default_factory=dict)
    origin: str = ""


def to_text(row: Row) -> str:
    """The text of a row for pre-training: its `text`, or `content`.

    Raises:
        DataError: Neither is there, or it is blank.
    """
    if is_preference(row.value) or is_message(row.value):
        raise unknown_format(row.value, row.origin, "run_pt.py")
    key = next((key for key in ("text", "content") if key in row.value), None)
    if key is None:
        raise unknown_format(row.value, row.origin, "run_pt.py")
    text = text_of(row.value[key], row.origin, f'"{key}"')
    if not text.strip():
        raise DataError(f'"{key}" is blank', place=row.origin, fix="Remove the record.")
    return text


def to_conversation(row: Row) -> Conversation:
    """The conversation of a row for SFT: ShareGPT, OpenAI messages, Alpaca, prompt/completion or prompt/response.

    Raises:
        DataError: In none of these formats, data for another script, or no assistant turn.
    """
    value, origin = row.value, row.origin
    if is_preference(value):
        raise wrong_stage(value, origin, "run_sft.py")
    messages = _turns(row) or _alpaca(row) or _prompt_and_answer(row)
    if messages is None:
        raise unknown_format(value, origin, "run_sft.py")
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError(
            "the conversation has no assistant turn, so there is nothing to learn",
            place=origin,
            fix="Add the answer. Prompts without answers are data for run_rl.py.",
        )
    return Conversation(messages, parse_tools(value.get("tools"), origin), origin)


def to_preference(row: Row) -> Preference:
    """The prompt and the two answers of a row for RM and DPO.

    Raises:
        DataError: In no known format, data for another script, a prompt that does not end with a user or tool turn, or
            two equal answers.
    """
    value, origin = row.value, row.origin
    if not is_preference(value):
        raise unknown_format(value, origin, "run_dpo.py")
    good, bad = ("chosen", "rejected") if "chosen" in value else ("response_chosen", "response_rejected")
    prompt, chosen, rejected = _prompt(row), _answer(row, good), _answer(row, bad)
    if chosen == rejected:
        raise DataError(f'"{good}" and "{bad}" are equal', place=origin, fix="Remove the record.")
    if any(message["role"] in ("system", "user") for message in (chosen[0], rejected[0])):
        prompt, chosen, rejected = _split_prompt(prompt, chosen, rejected, origin)
    if prompt is None:
        raise unknown_format(value, origin, "run_dpo.py")
    _check_answers(chosen, rejected, origin)
    tools = parse_tools(value.get("tools"), origin)
    return Preference(_checked_prompt(prompt, origin), chosen, rejected, _margin(row), tools, origin)


def to_prompt(row: Row) -> Prompt:
    """The prompt of a row for RL; SFT formats lose the answer after the last user turn.

    Raises:
        DataError: No prompt in any known format.
    """
    prompt = _prompt(row)
    if prompt is None:
        raise unknown_format(row.value, row.origin, "run_rl.py")
    while prompt and prompt[-1]["role"] == "assistant":
        prompt.pop()
    extra = {key: value for key, value in row.value.items() if key not in _PROMPT_KEYS}
    return Prompt(_checked_prompt(prompt, row.origin), extra, row.origin)


def _turns(row: Row) -> list[Message] | None:
    """`conversations` or `messages`, with a top-level system text before them."""
    key = next((key for key in _TURNS if key in row.value), None)
    if key is None:
        return None
    messages = parse_messages(row.value[key], row.origin, key)
    system = _system(row)
    if system and messages[0]["role"] == "system":
        if system[0]["content"] != messages[0]["content"]:
            raise DataError(f'a system text beside "{key}", and another one in it', place=row.origin, fix="Keep one.")
        return messages
    return system + messages


def _system(row: Row) -> list[Message]:
    """The top-level system text as a message; an empty list for none."""
    key = next((key for key in ("system", "system_prompt") if filled(row.value, key)), None)
    return [{"role": "system", "content": text_of(row.value[key], row.origin, f'"{key}"')}] if key else []


def _history(row: Row) -> list[Message]:
    """Alpaca's `history`, [[question, answer], ...], as messages."""
    history = row.value.get("history") or []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise DataError('"history" must be [[question, answer], ...]', place=row.origin)
    spoken = [part for pair in history for part in zip(("user", "assistant"), pair, strict=True)]
    turns = [{"role": role, "content": text} for role, text in spoken]
    return parse_messages(turns, row.origin, "history") if turns else []


def _ask(row: Row, key: str) -> list[Message]:
    """The column `key` (text or messages), with `input`, system and history around it."""
    value = row.value[key]
    if isinstance(value, list) and value and is_message(value[0]):
        return _system(row) + parse_messages(value, row.origin, key)
    text = text_of(value, row.origin, f'"{key}"', missing_ok=True)
    extra = text_of(row.value.get("input"), row.origin, '"input"', missing_ok=True) if key == "instruction" else ""
    question = "\n".join(part for part in (text, extra) if part.strip())
    if not question:
        raise DataError(f'"{key}" is empty', place=row.origin, fix="Fill it or remove the record.")
    return [*_system(row), *_history(row), {"role": "user", "content": question}]


def _alpaca(row: Row) -> list[Message] | None:
    """instruction (+ input) and output."""
    if not {"instruction", "output"} <= row.value.keys():
        return None
    return _ask(row, "instruction") + _answer(row, "output")


def _prompt_and_answer(row: Row) -> list[Message] | None:
    """prompt/completion, prompt/response or query/response."""
    pairs = (("prompt", "completion"), ("prompt", "response"), ("query", "response"))
    pair = next((pair for pair in pairs if set(pair) <= row.value.keys()), None)
    return _ask(row, pair[0]) + _answer(row, pair[1]) if pair else None


def _prompt(row: Row) -> list[Message] | None:
    """What comes before an answer, from any column that may hold it; None if there is none."""
    messages = _turns(row)
    if messages is not None:
        return messages
    key = next((key for key in _ASKS if key in row.value), None)
    return _ask(row, key) if key else None


def _answer(row: Row, key: str) -> list[Message]:
    """An answer: text, one message, or a list of messages."""
    value = row.value[key]
    if isinstance(value, list):
        return parse_messages(value, row.origin, key)
    return parse_messages([value if is_message(value) else {"role": "assistant", "content": value}], row.origin, key)


def _split_prompt(
    prompt: list[Message] | None, chosen: list[Message], rejected: list[Message], origin: str
) -> tuple[list[Message], list[Message], list[Message]]:
    """Answers that repeat the whole conversation: the prompt is what both begin with."""
    pairs = list(zip(chosen, rejected, strict=False))
    common = next((index for index, (left, right) in enumerate(pairs) if left != right), len(pairs))
    while common and chosen[common - 1]["role"] == "assistant":
        common -= 1
    shared = chosen[:common]
    # A prompt beside whole conversations (as in UltraFeedback) must be the end of what they share.
    if prompt is not None and shared[len(shared) - len(prompt) :] != prompt and shared != prompt:
        raise DataError(
            '"chosen" and "rejected" are whole conversations that do not share the prompt given beside them',
            place=origin,
            fix="Keep only the answers in them, or remove the prompt column.",
        )
    return shared, chosen[common:], rejected[common:]


def _check_answers(chosen: list[Message], rejected: list[Message], origin: str) -> None:
    """Each answer begins and ends with an assistant turn."""
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not answer or answer[0]["role"] != "assistant" or answer[-1]["role"] != "assistant":
            found = [message["role"] for message in answer] or "nothing"
            raise DataError(
                f'"{name}" must be an answer of the assistant, found {found} after the prompt',
                place=origin,
                fix="Both answers must continue the same prompt, with an assistant turn.",
            )


def _checked_prompt(prompt: list[Message], origin: str) -> list[Message]:
    """The prompt, if someone is waiting for an answer at its end."""
    if not prompt or prompt[-1]["role"] not in ("user", "tool"):
        found = f"a turn of {prompt[-1]['role']}" if prompt else "nothing"
        raise DataError(
            f"the prompt must end with a turn of user or tool, found {found}",
            place=origin,
            fix="Remove what follows the last question, or add the question.",
        )
    return prompt


def _margin(row: Row) -> float | None:
    """`margin`, or the distance of `score_chosen` and `score_rejected`; None for neither."""
    keys = ("margin",) if row.value.get("margin") is not None else ("score_chosen", "score_rejected")
    if any(row.value.get(key) is None for key in keys):
        return None
    numbers = [_number(row, key) for key in keys]
    return numbers[0] if len(numbers) == 1 else numbers[0] - numbers[1]


def _number(row: Row, key: str) -> float:
    """A finite number of a row."""
    number = row.value[key]
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise DataError(
            f'"{key}" must be a finite number, found {number!r}', place=row.origin, fix="Mend or remove it."
        )
    return float(number)
