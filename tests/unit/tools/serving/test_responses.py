"""Answers in OpenAI's form, held against the types of OpenAI's client."""

from __future__ import annotations

import json
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from hftune.tools.serving.answers import Finish
from hftune.tools.serving.responses import ChatResponse
from hftune.tools.talking.parsing import Part

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": "é\u2028"}}}
SAID: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"}


def test_a_whole_response() -> None:
    finished = [Finish("tool_calls", 5, SAID), Finish("stop", 2, {"role": "assistant", "content": "5"})]
    found = ChatCompletion.model_validate(ChatResponse("m", 10).whole(finished), strict=True)
    first, second = found.choices
    assert first.message.content is None and second.message.content == "5" and second.index == 1
    assert first.message.tool_calls and json.loads(first.message.tool_calls[0].function.arguments) == {"a": "é\u2028"}
    assert found.usage and (found.usage.completion_tokens, found.usage.total_tokens) == (7, 17)


def test_a_stream() -> None:
    response = ChatResponse("m", 10)
    finish = Finish("tool_calls", 5, SAID)
    parts = [Part("content", "a\n\nb\u2028"), Part("reasoning_content", "hm"), Part("tool_calls", call=CALL)]
    parts.append(parts[-1])
    events = [response.begin(0), *(response.part(0, part) for part in parts), response.end(0, finish)]
    events += [response.begin(1), response.part(1, parts[-1]), response.last([finish])]
    for event in events:
        # One event each, whatever line breaks the text has.
        assert event.startswith("data: ") and event.endswith("\n\n") and event.count("\n") == 2 and event.isascii()
    found = [ChatCompletionChunk.model_validate_json(event.removeprefix("data: ")) for event in events]
    deltas = [chunk.choices[0].delta for chunk in found[:-1]]
    assert [delta.content for delta in deltas[:2]] == ["", "a\n\nb\u2028"]
    assert deltas[2].model_extra == {"reasoning_content": "hm"}
    numbers = [call.index for delta in deltas for call in delta.tool_calls or []]
    assert numbers == [0, 1, 0], "calls are counted within an answer"
    assert found[5].choices[0].finish_reason == "tool_calls" and found[-1].choices == [] and found[-1].usage
