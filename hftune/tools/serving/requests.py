"""Bodies of requests to what they ask for: every field is checked, and none is ignored that would change the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hftune.data.readers.base import Row
from hftune.data.readers.strict_json import MAX_DEPTH, is_too_deep
from hftune.data.records import fields
from hftune.data.records.messages import Message
from hftune.errors import DataError, shown
from hftune.opening.json_file import parse_json
from hftune.template_arguments import TemplateArguments
from hftune.tools.serving.errors import RequestError

MOST_STOPS, LONGEST_STOP, MOST_CHOICES = 16, 1000, 16
_ORIGIN = "the request"

# Sampling: least and greatest value, and whether it is a whole number. OpenAI's, and those that vLLM takes as well.
SAMPLING: dict[str, tuple[float, float, bool]] = {
    "temperature": (0, 2, False),
    "top_p": (0, 1, False),
    "top_k": (-1, 1e6, True),
    "min_p": (0, 1, False),
    "repetition_penalty": (0.01, 10, False),
}
# These say nothing about the answer, or ask for what is done anyway.
_HARMLESS = frozenset(("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"))
# What is not done is refused, unless it asks for nothing.
_NOTHING: dict[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "stream": (False,),
    "best_of": (1,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
}
_KNOWN = frozenset(
    (
        *("model", "messages", "tools", "tool_choice", "stream", "stream_options", "n", "stop", "seed", "max_tokens"),
        *("max_completion_tokens", "chat_template_kwargs", "reasoning_effort", "logprobs", "top_logprobs"),
        *SAMPLING,
    )
)


@dataclass
class Asked:
    """A conversation to be continued, or scored."""

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    arguments: TemplateArguments = field(default_factory=dict)
    row: Row | None = None


@dataclass(kw_only=True)
class Sampled:
    """How answers are drawn.

    Attributes:
        sampling: The settings that were given, by transformers' names.
    """

    model: str
    n: int = 1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    sampling: dict[str, float] = field(default_factory=dict)


@dataclass
class ChatRequest(Asked, Sampled):
    """A request for an answer.

    Attributes:
        max_tokens: Of the answer; None: as many as there is room for.
        logprobs: Likeliest tokens that are told of each token of the answer; None: no log-probabilities.
    """

    stream: bool = False
    include_usage: bool = False
    max_tokens: int | None = None
    logprobs: int | None = None


def read_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        RequestError: It is none.
    """
    try:
        found = parse_json(raw, _ORIGIN, error=DataError)
    except DataError as error:
        raise RequestError(f"The body cannot be read: {error.cause}", code="invalid_json") from error
    if is_too_deep(found):
        raise RequestError(f"The body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")
    # Clients write null for what they leave out.
    return {name: value for name, value in found.items() if value is not None}


def read_chat(body: dict[str, Any]) -> ChatRequest:
    """The request for an answer that a body makes.

    Raises:
        RequestError: A field that is unknown, of another type, out of its range, or asks for what is not done.
    """
    check_names(body)
    asked = _conversation(body)
    if asked.messages[-1]["role"] not in ("user", "tool"):
        raise RequestError("the last message must be of user or tool, for the model to answer", param="messages")
    if not asked.tools or body.get("tool_choice") == "none":
        asked.tools = None
    if body.get("tool_choice", "auto") not in ("auto", "none"):
        raise RequestError("tool_choice must be auto or none: calls cannot be forced", param="tool_choice")
    if "reasoning_effort" in body:
        asked.arguments = {"reasoning_effort": body["reasoning_effort"]} | asked.arguments
    options = value_of(body, "stream_options", dict, {})
    longest = number_of(body, "max_completion_tokens", 1, 1 << 31)
    stream, told = value_of(body, "stream", bool, False), value_of(body, "logprobs", bool, False)
    tops = number_of(body, "top_logprobs", 0, 20)
    if tops and not told:
        raise RequestError("top_logprobs needs logprobs true", param="top_logprobs")
    if stream and told:
        raise RequestError("logprobs come with whole answers, not with stream", param="logprobs")
    return ChatRequest(
        **(vars(sampled(body)) | vars(asked)),
        stream=stream,
        include_usage=value_of(options, "include_usage", bool, False),
        max_tokens=_whole(number_of(body, "max_tokens", 1, 1 << 31) if longest is None else longest),
        logprobs=int(tops or 0) if told else None,
    )


def sampled(body: dict[str, Any]) -> Sampled:
    """How the answers that a body asks for are drawn.

    Raises:
        RequestError: As `read_chat`.
    """
    return Sampled(
        model=value_of(body, "model", str),
        n=int(number_of(body, "n", 1, MOST_CHOICES) or 1),
        stop=_stops(body),
        seed=_whole(number_of(body, "seed", -(1 << 63), (1 << 63) - 1)),
        sampling={
            name: value
            for name, (least, most, whole) in SAMPLING.items()
            if (value := number_of(body, name, least, most, whole=whole)) is not None
        },
    )


def read_scored(body: dict[str, Any]) -> Asked:
    """The conversation that a body asks to be scored.

    Raises:
        RequestError: As `read_chat`; or the last message is not the assistant's.
    """
    check_names(body, ("model", "messages", "tools", "chat_template_kwargs", "encoding_format"))
    if body.get("encoding_format", "float") != "float":
        raise RequestError("encoding_format must be float", param="encoding_format")
    asked = _conversation(body)
    if asked.messages[-1]["role"] != "assistant":
        raise RequestError("the last message must be the assistant's: it is what is scored", param="messages")
    return asked


def check_names(body: dict[str, Any], known: tuple[str, ...] | frozenset[str] = _KNOWN) -> None:
    """Refuse a field that is not known, or asks for what is not done.

    Raises:
        RequestError: With its name.
    """
    for name, value in body.items():
        if name in known or name in _HARMLESS or value in _NOTHING.get(name, ()):
            continue
        said = "is not supported" if name in _NOTHING else "is not known"
        raise RequestError(f"the field {shown(name)} {said}", param=name[:100], code="unsupported_parameter")


def _conversation(body: dict[str, Any]) -> Asked:
    name = value_of(body, "model", str)
    value_of(body, "messages", list)
    kept = ("messages", "tools", "chat_template_kwargs")
    row = Row({key: body[key] for key in kept if key in body}, _ORIGIN, 1)
    try:
        # As records are read: what was trained in a form is asked in the same form.
        messages = fields.turns(row) or []
        return Asked(name, messages, fields.tools(row), fields.template_arguments(row), row)
    except DataError as error:
        raise refused(error) from error


def refused(error: DataError) -> RequestError:
    """A fault of a conversation as a refusal; what to do about it is said of records, so it is left out."""
    return RequestError(error.cause, param="messages", code="invalid_messages")


def value_of(body: dict[str, Any], name: str, kind: type, otherwise: Any = None) -> Any:
    """A field of a type.

    Raises:
        RequestError: It is of another, or not there.
    """
    value = body.get(name, otherwise)
    if not isinstance(value, kind):
        found = "nothing" if value is None else type(value).__name__
        raise RequestError(f"{name} must be of type {kind.__name__}, found {found}", param=name)
    return value


def number_of(body: dict[str, Any], name: str, least: float, most: float, *, whole: bool = True) -> float | None:
    """A field that is a number of a range; None where it is not there.

    Raises:
        RequestError: It is none.
    """
    value = body.get(name)
    if value is None:
        return None
    # true is a whole number for Python.
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right or not math.isfinite(value) or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        raise RequestError(f"{name} must be {kind} from {least:g} to {most:g}, found {shown(value)}", param=name)
    # transformers refuses a temperature of 2, and takes one of 2.0.
    return value if whole else float(value)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    given = body.get("stop", [])
    stops = [given] if isinstance(given, str) else given
    right = isinstance(stops, list) and all(isinstance(one, str) and 0 < len(one) <= LONGEST_STOP for one in stops)
    if not right or len(stops) > MOST_STOPS:
        cause = f"stop must be a text or up to {MOST_STOPS}, each of 1 to {LONGEST_STOP} characters"
        raise RequestError(cause, param="stop")
    return tuple(stops)
