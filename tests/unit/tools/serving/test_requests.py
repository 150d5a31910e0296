"""Requests: what is asked for, and what is refused, in whose words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hftune.tools.serving.errors import RequestError
from hftune.tools.serving.requests import MOST_CHOICES, read_body, read_chat, read_scored

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def refused(body: dict[str, Any], read: Any = read_chat) -> RequestError:
    with pytest.raises(RequestError) as error:
        read(body)
    return error.value


def test_a_request_with_all_fields() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Add."}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    found = read_chat(
        {
            "model": "m",
            "messages": messages,
            "tools": tools,
            "stream": True,
            "stream_options": {"include_usage": True},
            "n": 2,
            "stop": "end",
            "seed": 5,
            "max_tokens": 7,
            "max_completion_tokens": 9,
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 3,
            "chat_template_kwargs": {"enable_thinking": False},
            "user": "me",
            "logprobs": False,
            "frequency_penalty": 0,
        }
    )
    assert [message["role"] for message in found.messages] == ["system", "user", "assistant", "tool"]
    assert found.messages[1]["content"] == "Add." and found.messages[2]["reasoning_content"] == "hm"
    assert found.messages[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert found.tools and found.tools[0]["function"]["name"] == "add"
    assert (found.stream, found.include_usage, found.n, found.stop, found.seed) == (True, True, 2, ("end",), 5)
    assert found.max_tokens == 9 and found.sampling == {"temperature": 0, "top_p": 0.5, "top_k": 3}
    # transformers takes floats alone.
    assert [type(value) for value in found.sampling.values()] == [float, float, int]
    assert found.arguments == {"enable_thinking": False}
    assert read_chat({**ASKED, "tools": tools, "tool_choice": "none"}).tools is None
    assert read_chat({**ASKED, "reasoning_effort": "low"}).arguments == {"reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("more", "param", "said"),
    [
        ({"model": 3}, "model", "type str"),
        ({"messages": "Hi"}, "messages", "type list"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages", "unknown role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages", "image"),
        ({"messages": [*ASKED["messages"], {"role": "assistant", "content": "a"}]}, "messages", "last message"),
        ({"n": MOST_CHOICES + 1}, "n", "whole number from 1 to 16"),
        ({"n": True}, "n", "whole number"),
        ({"temperature": 2.5}, "temperature", "from 0 to 2"),
        ({"temperature": "hot"}, "temperature", "a number"),
        ({"seed": 1 << 70}, "seed", "whole number"),
        ({"max_tokens": 0}, "max_tokens", "from 1"),
        ({"stop": [""]}, "stop", "1 to 1000 characters"),
        ({"stop": ["a"] * 17}, "stop", "up to 16"),
        ({"stream": "yes"}, "stream", "type bool"),
        ({"tool_choice": "required"}, "tool_choice", "cannot be forced"),
        ({"logprobs": 5}, "logprobs", "type bool"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "stream": True}, "logprobs", "whole answers"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"temprature": 1}, "temprature", "not known"),
        ({"chat_template_kwargs": [1]}, "messages", "must be an object"),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, Any], param: str, said: str) -> None:
    error = refused({**ASKED, **more})
    assert error.status == 400 and error.param == param and said in error.message
    assert error.body()["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": param,
        "code": error.code,
    }


def test_what_is_scored_ends_with_an_answer() -> None:
    talk = [*ASKED["messages"], {"role": "assistant", "content": "a"}]
    assert read_scored({"model": "r", "messages": talk}).row is not None
    assert "last message" in refused(ASKED, read_scored).message
    assert refused({"model": "r", "messages": talk, "temperature": 1}, read_scored).code == "unsupported_parameter"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"[" * 5000])
def test_a_body_that_is_no_object_of_json(raw: bytes) -> None:
    assert refused(raw, read_body).code == "invalid_json"  # type: ignore[arg-type]


def test_null_is_nothing() -> None:
    body = read_body(json.dumps({**ASKED, "tools": None, "stop": None, "temperature": None}).encode())
    assert body == ASKED and read_chat(body).sampling == {}


@pytest.mark.parametrize("name", ["tools", "messages", "metadata", "stop"])
@pytest.mark.parametrize("depth", [100, 500, 900])
def test_a_body_that_is_nested_deeper_than_templates_follow(name: str, depth: int) -> None:
    assert read_body(b'{"%s": %s}' % (name.encode(), b"[" * 90 + b"]" * 90))
    with pytest.raises(RequestError, match=r"nested deeper than 100 levels|nested too deeply") as error:
        read_body(b'{"%s": %s}' % (name.encode(), b"[" * depth + b"]" * depth))
    assert error.value.status == 400
