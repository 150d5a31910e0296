"""Texts, reasoning and calls of a turn, from a string or from parts."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.messages import split_parts, text_of
from hftune.errors import DataError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "value": "b"}], "ab"),
        ([{"text": "a"}, {"type": "input_text", "text": "b"}, {"type": "output_text", "text": "c"}], "abc"),
        ([], ""),
    ],
)
def test_text(value: Any, text: str) -> None:
    assert text_of(value, "f:1", "turn") == text


@pytest.mark.parametrize("value", [None, 7, {"a": 1}, [{"type": "image"}], ["a"], [{"type": ["text"], "text": "a"}]])
def test_what_is_no_text(value: Any) -> None:
    with pytest.raises(DataError, match="turn must be text") as caught:
        text_of(value, "f:1", "turn")
    assert caught.value.place == "f:1"


def test_nothing_is_allowed_where_it_may_be_missing() -> None:
    assert text_of(None, "f:1", "turn", missing_ok=True) == ""


def test_parts_are_told_apart() -> None:
    said = split_parts(
        [
            {"type": "thinking", "thinking": "hm "},
            {"type": "reasoning", "value": "s"},
            {"type": "thinking", "thinking": [{"type": "text", "text": "o"}]},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "yes"},
            {"type": "tool_use", "id": "1", "name": "get", "input": {"x": 1}},
            {"type": "tool_call", "value": '{"name": "put", "arguments": {}}'},
        ],
        "f:1",
        "turn",
    )
    assert (said.reasoning, said.text) == ("hm so", "yes")
    get, put = said.calls
    assert get == {"type": "function", "function": {"name": "get", "arguments": {"x": 1}}, "id": "1"}
    assert put == {"type": "function", "function": {"name": "put", "arguments": {}}}
    with pytest.raises(DataError, match="turn must be text"):
        split_parts([{"type": "audio", "data": "x"}], "f:1", "turn")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "a part of the type image_url (an image)"),
        ({"type": "input_audio", "input_audio": {}}, "a part of the type input_audio (sound)"),
        ({"type": "video", "value": "x.mp4"}, "a part of the type video (film)"),
        ({"type": "input_file", "file_id": "f"}, "a part of the type input_file (a file)"),
        ({"type": "quiz", "value": "x"}, "a part of the type quiz"),
    ],
)
@pytest.mark.parametrize("read", [text_of, split_parts])
def test_a_part_that_is_not_read_says_what_it_is(read: Any, part: dict[str, Any], words: str) -> None:
    """Behind text that is, whoever speaks; both OpenAI's parts and LLaMA-Factory's."""
    with pytest.raises(DataError) as caught:
        read([{"type": "text", "text": "a"}, {"type": "text", "value": "b"}, part], "f:1", "messages[0]")
    assert caught.value.cause == f"messages[0] must be text, found {words}"
