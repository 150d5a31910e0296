"""One canonical form of a conversation: a list of {"role", "content"} messages as chat templates read them.

Roles are system, user, assistant and tool. An assistant message may carry `tool_calls`
([{"type": "function", "function": {"name": str, "arguments": dict}}]), `reasoning_content` (never blank), and `weight`
(a float that its loss is multiplied with; 0: this turn is not trained; absent: as the run says). Calls and thoughts
that are written in texts stay there: whether they are fields is for the chat template (`Renderer.said`).
"""

from __future__ import annotations

import json
import math
from typing import Any

from hftune.data.formats import has_text, note_unread
from hftune.data.strict_json import from_json
from hftune.data.tool_calls import THOUGHTS, parse_calls, thoughts_and_call
from hftune.errors import DataError, shown

# By the type of a part: the keys under which its text may stand.
_TEXTS = {None: ("text",), "text": ("text", "value"), "input_text": ("text",), "output_text": ("text",)}
_REASONING = {
    "reasoning": ("value", "text", "reasoning"),
    "thinking": ("thinking", "text"),
    # OpenRouter's `reasoning_details`.
    "reasoning.text": ("text",),
    "reasoning.summary": ("summary",),
}
_CALL_PARTS = ("tool_call", "tool_use")
_RESULT = "tool_result"
_MEDIA = {"image": "an image", "audio": "sound", "video": "film", "document": "a document", "file": "a file"}
# Thoughts that their provider keeps to itself: there is nothing to train.
_HIDDEN = ("redacted_thinking", "reasoning.encrypted")


def text_of(value: Any, where: str, *, missing_ok: bool = False) -> str:
    """The text of a message's content: a string, or a list of {"type": "text", "text": ...} parts.

    Raises:
        DataError: Anything else, such as an image, a number or (unless `missing_ok`) null.
    """
    # By far the most frequent; `type`, since it is asked for each turn of each record.
    if type(value) is str:
        return value
    if value is None and missing_ok:
        return ""
    text = _joined(value, _TEXTS) if isinstance(value, list) else None
    if text is None:
        raise _not_text(value, where)
    return text


def _part(part: Any, known: dict[Any, tuple[str, ...]]) -> str | None:
    """The text of a part whose type is among those known; None for any other."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), (str, type(None))):
        return None
    keys = known.get(part.get("type"), ())
    text = next((part[key] for key in keys if isinstance(part.get(key), (str, list))), None)
    # Mistral's thoughts are parts themselves.
    return _joined(text, _TEXTS) if isinstance(text, list) else text


def _joined(parts: list[Any], known: dict[Any, tuple[str, ...]]) -> str | None:
    """The texts of all parts; None where one has none."""
    texts = [_part(part, known) for part in parts]
    return None if None in texts else "".join(text for text in texts if text is not None)


def thoughts_of(value: Any) -> str:
    """The text of a field of thoughts, a string or parts without those that are hidden; "" for none."""
    if isinstance(value, list):
        kinds = [part.get("type") if isinstance(part, dict) else "" for part in value]
        value = _joined([part for part, kind in zip(value, kinds, strict=True) if kind not in _HIDDEN], _REASONING)
    return value if isinstance(value, str) and value.strip() else ""


def results_in(content: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Anthropic's results of tools among the parts of a user's turn, as turns of their own, and the other parts."""
    parts = content if type(content) is list else []
    found = [part for part in parts if isinstance(part, dict) and part.get("type") == _RESULT]
    keys = {"content": "content", "tool_call_id": "tool_use_id"}
    turns = [{"role": "tool"} | {ours: part.get(theirs) for ours, theirs in keys.items()} for part in found]
    return turns, [part for part in parts if part not in found] if found else parts


def result_text(value: Any, where: str) -> str:
    """What a tool has returned: text, parts, or any other value of JSON, which becomes its text.

    Raises:
        DataError: Parts that are not text, such as an image.
    """
    if isinstance(value, str) or value is None:
        return value or ""
    parts = value if isinstance(value, list) else [value]
    text = _joined(parts, _TEXTS) if parts else None
    kinds = [str(part.get("type")) for part in parts if isinstance(part, dict)]
    if text is None and any(medium in kind for kind in kinds for medium in _MEDIA):
        raise _not_text(value, where)
    return json.dumps(value, ensure_ascii=False, default=str) if text is None else text


def _call(part: dict[str, Any]) -> Any:
    """LLaMA-Factory writes a call as JSON in `value`, Anthropic as `name` and `input`."""
    if part["type"] == "tool_call":
        return part.get("value")
    # The form that OpenAI has, which `parse_calls` reads.
    return {"id": part.get("id"), "name": part.get("name"), "arguments": part.get("input")}


def _not_text(value: Any, where: str) -> DataError:
    found = f"{type(value).__name__}: {shown(value)}"
    for part in value if isinstance(value, list) else [value]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind is not None and _part(part, _TEXTS | _REASONING) is None:
            medium = next((medium for medium in _MEDIA if medium in str(kind)), None)
            found = f"a part of the type {shown(kind)}" + (f" ({_MEDIA[medium]})" if medium else "")
            break
    return DataError(
        f"{where} must be text, found {found}",
        fix="Write a string, or parts of text; images, audio, video and files are not read yet: remove such records.",
        kind="content that is not text",
    )


Message = dict[str, Any]

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool_calls": "assistant",
    "tool": "tool",
    "observation": "tool",
    "observations": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "ipython": "tool",
}
"""The names of roles met in the wild, and ours; in lower case, with _ for -."""

NO_TURNS = "no list of turns"
BAD_WEIGHT = "bad weight"
BAD_TURN = "broken turn"

_CALLS = ("function_call", "tool_call", "tool_calls")
# Texts next to the content; in one order, whatever the order in the record.
_KEPT = dict.fromkeys(("name", "tool_call_id")).keys()
# DeepSeek's, Qwen's and GLM's; vLLM's and OpenRouter's; gpt-oss's; parts of OpenRouter's and of LiteLLM's.
THOUGHTS_KEYS = dict.fromkeys(
    ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
).keys()
_NO_CALLS: tuple[Any, ...] = (None, "", "[]", "null", [], {})
# Each says how much a turn is trained: OpenAI's and ours, ms-swift's, LLaMA-Factory's, axolotl's, ms-swift's.
_WEIGHTS = dict.fromkeys(("weight", "loss_scale", "loss_weight", "train", "loss")).keys()
_READ = frozenset(
    ("from", "value", "role", "content", "tool_calls", "function_call", *_KEPT, *THOUGHTS_KEYS, *_WEIGHTS)
)


def is_message(value: Any) -> bool:
    """Whether a value looks like one message, with from/value or role/content."""
    return isinstance(value, dict) and ("from" in value or "role" in value)


def without_weight(message: Message) -> Message:
    """A message that does not say how much it is trained."""
    return {key: part for key, part in message.items() if key != "weight"}


def parse_messages(value: Any, key: str) -> list[Message]:
    """A list of from/value or role/content turns, or of human/assistant pairs, to canonical messages.

    A list may also be written as a string of JSON, as tables hold it.

    Raises:
        DataError: Not a list, an empty list, a turn of another form, an unknown role, or a broken function call.
    """
    if type(value) is str and value.lstrip().startswith("["):
        value = from_json(value, f'"{key}"', fix="Write the list as JSON.")
    if type(value) is not list or not value:
        found = "an empty list" if value == [] else type(value).__name__
        raise DataError(
            f'"{key}" must be a list of turns, found {found}',
            fix='Write [{"from": "human", "value": ...}, ...] or [{"role": "user", "content": ...}, ...].',
            kind=NO_TURNS,
        )
    messages: list[Message] = []
    for index, turn in enumerate(value):
        _add_turn(messages, turn, f"{key}[{index}]")
    return messages


def _add_turn(messages: list[Message], turn: Any, where: str) -> None:
    """Append what a turn says. A call joins the assistant turn before it: both are one utterance of the model."""
    # ShareGPT in pairs: one entry for a question and its answer.
    if isinstance(turn, dict) and not is_message(turn) and "assistant" in turn and ("human" in turn or "user" in turn):
        asked = turn["human"] if "human" in turn else turn["user"]
        _add_turn(messages, {"role": "user", "content": asked}, where)
        rest = {key: part for key, part in turn.items() if key not in ("human", "user", "assistant")}
        _add_turn(messages, {**rest, "role": "assistant", "content": turn["assistant"]}, where)
        return
    results, others = results_in(turn.get("content") if isinstance(turn, dict) else None)
    for result in results:
        _add_turn(messages, result, where)
    if results and not others:
        return
    message, is_call = _parse_turn({**turn, "content": others} if results else turn, where)
    before = messages[-1] if messages else None
    if before is not None and _are_one(before, message, is_call):
        _join(before, message)
        return
    # A result must answer a call: templates print a stray one as if the user had said it, or refuse.
    if message["role"] == "tool" and (before is None or before["role"] not in ("assistant", "tool")):
        raise DataError(
            f"{where} is a tool result that follows no assistant turn",
            fix="Put the assistant's function call before it.",
            kind="tool result without a call",
        )
    messages.append(message)


def _are_one(before: Message, message: Message, is_call: bool) -> bool:
    """Whether a message is the rest of the assistant's before it: a call, or what follows mere thoughts (ms-swift)."""
    if not before["role"] == message["role"] == "assistant" or before.get("weight") != message.get("weight"):
        return False
    return is_call or (not before.get("tool_calls") and THOUGHTS.fullmatch(before["content"]) is not None)


def _join(before: Message, message: Message) -> None:
    """Add the rest of what the assistant says to the message before."""
    between = "\n" if before["content"].strip() and message["content"] and message.get("tool_calls") else ""
    before["content"] += between + message["content"]
    if thoughts := [one["reasoning_content"] for one in (before, message) if "reasoning_content" in one]:
        before["reasoning_content"] = "\n\n".join(thoughts)
    if calls := [*before.get("tool_calls", []), *message.get("tool_calls", [])]:
        before["tool_calls"] = calls


def _parse_turn(turn: Any, where: str) -> tuple[Message, bool]:
    """The message of one turn, and whether the turn is a call and nothing else."""
    if not is_message(turn):
        found = [shown(key) for key in sorted(turn)[:10]] if isinstance(turn, dict) else type(turn).__name__
        fix = 'Write {"from": ..., "value": ...} or {"role": ..., "content": ...}.'
        raise DataError(f"{where} must have from/value or role/content, found {found}", fix=fix, kind=BAD_TURN)
    # Tables hold both pairs of keys, one of them with nulls.
    spoken = turn["from"] if turn.get("from") is not None else turn.get("role")
    name = spoken.lower().replace("-", "_") if isinstance(spoken, str) else ""
    role = ROLES.get(name)
    if role is None:
        fix = f"Known roles: {', '.join(sorted(ROLES))}."
        raise DataError(f"{where} has the unknown role {spoken!r:.60}", fix=fix, kind="unknown role")
    content = _content(turn)
    # ShareGPT writes a call as a speaker; its text is the call, with LLaMA-Factory behind thoughts.
    if name in _CALLS:
        thoughts, call = thoughts_and_call(content)
        message: Message = {"role": role, "content": thoughts, "tool_calls": parse_calls(call, where)}
    else:
        message = _spoken(turn, role, content, where)
    if not _KEPT.isdisjoint(turn):
        message |= {key: text_of(turn[key], f"{where} {key}") for key in _KEPT if turn.get(key) is not None}
    unread = turn.keys() - _READ
    if not THOUGHTS_KEYS.isdisjoint(turn) or "reasoning_content" in message:
        unread |= _add_thoughts(message, turn, where)
    if len(turn) > 2:
        unread |= {key for key in ("value", "content") if turn.get(key) is not None and turn[key] is not content}
        for key in sorted(key for key in unread if has_text(turn[key])):
            note_unread(f'"{shown(key)}" of a turn of {role}')
    weight = None if _WEIGHTS.isdisjoint(turn) else _weight(turn, role, where)
    if weight is not None:
        message["weight"] = weight
    return _checked(message, where), name in _CALLS


def _add_thoughts(message: Message, turn: dict[str, Any], where: str) -> set[str]:
    """Put the thoughts of a turn, by whichever name, into its message; the names that hold none that can be read."""
    texts = {key: thoughts_of(turn.get(key)) for key in THOUGHTS_KEYS if turn.get(key) is not None}
    if message["role"] != "assistant":
        return {*texts}
    given = [message.get("reasoning_content", ""), *texts.values()]
    # Servers repeat them under several names, and some in the text as well.
    found = {text.strip(): text for text in given if text}
    if len(found) > 1:
        names = ", ".join(key for key, text in texts.items() if text)
        cause = f"{where} has several texts of thoughts that differ: {names}"
        raise DataError(cause, fix="Keep one of them.", kind="two texts of thoughts")
    for bare, text in found.items():
        message["reasoning_content"] = text
        in_text = THOUGHTS.match(message["content"])
        if in_text and in_text[1].strip() == bare:
            message["content"] = message["content"][in_text.end() :]
    return {key for key, text in texts.items() if not text}


def _content(turn: dict[str, Any]) -> Any:
    """What a turn says: value with from, content with role; tables fill the other pair with nulls."""
    first, second = ("value", "content") if turn.get("from") is not None else ("content", "value")
    return turn[first] if turn.get(first) is not None else turn.get(second)


def _spoken(turn: dict[str, Any], role: str, content: Any, where: str) -> Message:
    """A message of text, with the calls that OpenAI writes next to it (`tool_calls`; before 2024, `function_call`)."""
    # An empty list means no call, as OpenAI's exports write it, and tables as text.
    calls = next((turn[key] for key in ("tool_calls", "function_call") if turn.get(key) not in _NO_CALLS), None)
    # Only what the assistant says may hold reasoning and calls among its parts; a list of others is text.
    if role == "assistant" and type(content) is list:
        return _from_parts(content, calls, where)
    if not calls:
        said = result_text(content, where) if role == "tool" else text_of(content, where)
        return {"role": role, "content": said}
    if role != "assistant":
        fix = "Only the assistant calls functions."
        raise DataError(f"{where} is a turn of {role} with function calls", fix=fix, kind=BAD_TURN)
    text = text_of(content, where, missing_ok=True)
    return {"role": role, "content": text, "tool_calls": parse_calls(calls, where)}


def _from_parts(parts: list[Any], calls: Any, where: str) -> Message:
    """An assistant's message from a list of parts: text, reasoning, calls; and from the calls next to it."""
    text, thoughts, called = "", "", []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _CALL_PARTS:
            called += parse_calls(_call(part), where)
        elif kind in _HIDDEN:
            note_unread(f"parts of the type {kind}")
        elif (found := _part(part, _REASONING)) is not None:
            thoughts += found
        elif (found := _part(part, _TEXTS)) is not None:
            text += found
        else:
            raise _not_text(parts, where)
    called += parse_calls(calls, where) if calls else []
    message: Message = {"role": "assistant", "content": text}
    message |= {"reasoning_content": thoughts} if thoughts else {}
    return message | ({"tool_calls": called} if called else {})


def _checked(message: Message, where: str) -> Message:
    """An assistant must say or call something. A user may say nothing: after a cut answer, it means: continue."""
    if message["role"] == "assistant" and not message["content"].strip() and not message.get("tool_calls"):
        raise DataError(
            f"{where} is an empty assistant turn",
            fix="Fill it or remove the record: there is nothing to learn from it.",
            kind="empty assistant turn",
        )
    return message


def _weight(turn: dict[str, Any], role: str, where: str) -> float | None:
    """How much a turn is trained, by whichever name; None where it does not say."""
    given = {key: _number(turn[key], key, where) for key in _WEIGHTS if turn.get(key) is not None}
    if not given:
        return None
    # Compared as trained or not: loss_scale 2 next to train true is no contradiction.
    trained = {weight > 0 for weight in given.values()}
    if len(trained) > 1:
        said = ", ".join(f"{key} {turn[key]}" for key in given)
        fix = "Keep one of them."
        raise DataError(f"{where} contradicts itself: {said}", fix=fix, kind=BAD_WEIGHT)
    if role != "assistant" and trained == {True}:
        name = next(iter(given))
        raise DataError(
            f'{where} is a turn of {role} with "{name}" {turn[name]}; only what the assistant says is trained',
            fix=f'Remove "{name}" there; --train_on_inputs trains all turns.',
            kind=BAD_WEIGHT,
        )
    # In the order of `_WEIGHTS`: a number says more than a switch.
    return next(iter(given.values())) if role == "assistant" else None


def _number(value: Any, key: str, where: str) -> float:
    """A weight as a number: true and false stand for 1 and 0."""
    is_switch = key in ("train", "loss")
    # bool is an int in Python; as a weight, true would be read as 1 without anybody having meant it.
    number = isinstance(value, (int, float)) and not (isinstance(value, bool) and not is_switch)
    if not number or not math.isfinite(value) or value < 0 or (is_switch and value not in (0, 1)):
        fix = '"weight" and "loss_scale" are numbers of 0 or more, "train" and "loss" are true or false.'
        raise DataError(f'{where} has "{key}" {value!r:.40}', fix=fix, kind=BAD_WEIGHT)
    return float(value)
