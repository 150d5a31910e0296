"""Answers in OpenAI's form: whole, and as a stream of server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from hftune.tools.serving.answers import Finish
from hftune.tools.talking.parsing import Part

DONE = "data: [DONE]\n\n"


class ChatResponse:
    """The response to one request for an answer.

    Args:
        model: The name under which it was asked.
        prompt_tokens: Tokens of the prompt.
    """

    def __init__(self, model: str, prompt_tokens: int) -> None:
        self.head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self.prompt_tokens, self.calls = prompt_tokens, 0

    def whole(self, finished: list[Finish]) -> dict[str, Any]:
        """All answers at once."""
        choices = [
            {"index": index, "message": _message(one.message), "finish_reason": one.reason, "logprobs": one.log_probs}
            for index, one in enumerate(finished)
        ]
        return self.head | {"object": "chat.completion", "choices": choices, "usage": self.usage(finished)}

    def usage(self, finished: list[Finish]) -> dict[str, int]:
        """Tokens of the prompt and of all answers."""
        said = sum(one.tokens for one in finished)
        total = self.prompt_tokens + said
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": said, "total_tokens": total}

    def begin(self, index: int) -> str:
        """The event that opens an answer."""
        # The number of a call counts within its answer.
        self.calls = 0
        return self._event(index, {"role": "assistant", "content": ""})

    def part(self, index: int, part: Part) -> str:
        """The event of a part."""
        if part.call is None:
            return self._event(index, {part.kind: part.text})
        self.calls += 1
        return self._event(index, {"tool_calls": [{"index": self.calls - 1, **_call(part.call)}]})

    def end(self, index: int, finish: Finish) -> str:
        """The event that closes an answer."""
        return self._event(index, {}, finish.reason)

    def last(self, finished: list[Finish]) -> str:
        """The event with the counts, which has no answer."""
        return _data(self.head | {"object": "chat.completion.chunk", "choices": [], "usage": self.usage(finished)})

    def _event(self, index: int, delta: dict[str, Any], reason: str | None = None) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None}
        return _data(self.head | {"object": "chat.completion.chunk", "choices": [choice]})


def error_event(body: dict[str, Any]) -> str:
    """The event that ends a stream which cannot be finished."""
    return _data(body)


def _data(value: dict[str, Any]) -> str:
    # ASCII: no line break of a text ends the event.
    return f"data: {json.dumps(value)}\n\n"


def _message(said: dict[str, Any]) -> dict[str, Any]:
    calls = [_call(call) for call in said.get("tool_calls", [])]
    return {**said, **({"tool_calls": calls, "content": said["content"] or None} if calls else {})}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """A call as OpenAI writes it: with an id, its arguments as a text of JSON."""
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    made = {"name": function["name"], "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": made}
