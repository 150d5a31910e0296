"""Turns in the one canonical form: texts, parts, roles, thoughts, calls, weights, and what is broken."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.messages import parse_messages, text_of
from hftune.data.records import to_conversation
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, row, user


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
    assert text_of(value, "turn") == text


@pytest.mark.parametrize("value", [None, 7, {"a": 1}, [{"type": "image"}], ["a"], [{"type": ["text"], "text": "a"}]])
def test_what_is_no_text(value: Any) -> None:
    with pytest.raises(DataError, match="turn must be text"):
        text_of(value, "turn")


def test_nothing_is_allowed_where_it_may_be_missing() -> None:
    assert text_of(None, "turn", missing_ok=True) == ""


def of_parts(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return parse_messages([assistant([*parts])], "messages")


def test_parts_are_told_apart() -> None:
    (said,) = of_parts(
        {"type": "thinking", "thinking": "hm "},
        {"type": "reasoning", "value": "s"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "o"}]},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "yes"},
        {"type": "tool_use", "id": "1", "name": "get", "input": {"x": 1}},
        {"type": "tool_call", "value": '{"name": "put", "arguments": {}}'},
    )
    assert (said["reasoning_content"], said["content"]) == ("hm so", "yes")
    get, put = said["tool_calls"]
    assert get == {"type": "function", "function": {"name": "get", "arguments": {"x": 1}}, "id": "1"}
    assert put == {"type": "function", "function": {"name": "put", "arguments": {}}}
    with pytest.raises(DataError, match=r"messages\[0\] must be text"):
        of_parts({"type": "audio", "data": "x"})


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
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_part_that_is_not_read_says_what_it_is(role: str, part: dict[str, Any], words: str) -> None:
    """Behind text that is, whoever speaks; both OpenAI's parts and LLaMA-Factory's."""
    with pytest.raises(DataError) as caught:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "value": "b"}, part]
        parse_messages([{"role": role, "content": parts}], "messages")
    assert caught.value.cause == f"messages[0] must be text, found {words}"


W = "weight"


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        ({"weight": 0.5}, 0.5),
        ({"weight": 0}, 0.0),
        ({"weight": 3}, 3.0),
        ({"loss_scale": 2.0}, 2.0),
        ({"train": False}, 0.0),
        ({"train": True}, 1.0),
        ({"loss": False}, 0.0),
        ({"loss": False, "weight": 0}, 0.0),
        ({"loss": None, "weight": None}, None),
    ],
)
def test_weights_of_turns(given: dict[str, Any], weight: float | None) -> None:
    value = [user("Q"), assistant("A", **given), user("R"), {**assistant("B"), "loss": True}]
    found = to_conversation(row(messages=value)).messages[1]
    assert found == (assistant("A") if weight is None else assistant("A", weight=weight))
    assert not isinstance(found.get(W), bool)


@pytest.mark.parametrize("spoken", ["human", "HUMAN", "prompter"])
def test_roles_have_many_names(spoken: str) -> None:
    assert parse_messages([{"from": spoken, "value": "Q"}], "messages") == [user("Q")]
    turns = [{"role": "developer", "content": "S"}, user("Q")]
    assert parse_messages(turns, "messages")[0] == {"role": "system", "content": "S"}


CALL = '{"name": "f", "arguments": {"x": 1}}'
F = {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}
A = assistant("A", reasoning_content="so")


@pytest.mark.parametrize(
    ("turns", "messages"),
    [
        # DeepSeek's, vLLM's, gpt-oss's, OpenRouter's and LiteLLM's names; also several at once.
        ([assistant("A", reasoning_content="so")], [A]),
        ([assistant("A", reasoning="so")], [A]),
        ([assistant("A", thinking="so", reasoning_content=None)], [A]),
        ([assistant("A", reasoning="so", reasoning_content="so ", thinking="")], [A]),
        ([assistant("A", reasoning_details=[{"type": "reasoning.text", "text": "so"},
                                            {"type": "reasoning.encrypted", "data": "x"}])], [A]),
        ([assistant("A", thinking_blocks=[{"type": "thinking", "thinking": "so", "signature": "x"}])], [A]),
        ([{"role": "assistant", "reasoning": "so", "content": [{"type": "text", "text": "A"}]}], [A]),
        ([{"from": "gpt", "value": "A", "reasoning": "so"}], [A]),
        # In the text as well.
        ([assistant("<think>\nso\n</think>\n\nA", reasoning="so")], [A]),
        ([assistant("<think>\nno\n</think>\n\nA", reasoning="so")],
         [assistant("<think>\nno\n</think>\n\nA", reasoning_content="so")]),
        # None, and blank: a text's own would not be found.
        ([assistant("<think>so</think>A", reasoning_content=" ")], [assistant("<think>so</think>A")]),
        # Mistral's.
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "so"}]},
                                            {"type": "text", "text": "A"}]}], [A]),
        # LLaMA-Factory: thoughts before a call that is a turn; ms-swift: as a turn of their own.
        ([{"from": "function_call", "value": f"<think>\nso\n</think>\n\n{CALL}"}],
         [assistant("<think>\nso\n</think>", **F)]),
        ([{"from": "function_call", "value": f"<tool_call>\n{CALL}\n</tool_call>"}], [assistant("", **F)]),
        ([{"from": "gpt", "value": "wait"}, {"from": "function_call", "value": f"<think>so</think>{CALL}"}],
         [assistant("wait\n<think>so</think>", **F)]),
        ([assistant("<think>\nso\n</think>\n"), {"role": "tool_call", "content": CALL}],
         [assistant("<think>\nso\n</think>\n", **F)]),
        ([assistant("<think>\nso\n</think>\n", loss_scale=1), assistant("A", loss_scale=1)],
         [assistant("<think>\nso\n</think>\nA", weight=1.0)]),
        ([assistant("<think>so</think>", loss_scale=1), assistant("A", loss_scale=2)],
         [assistant("<think>so</think>", weight=1.0), assistant("A", weight=2.0)]),
        ([assistant("so"), assistant("A")], [assistant("so"), assistant("A")]),
        ([assistant("", reasoning="so", **F), {"role": "tool_call", "content": CALL}],
         [assistant("", reasoning_content="so", tool_calls=F["tool_calls"] * 2)]),
        # Tables.
        ([assistant("A", tool_calls="[]", function_call={})], [assistant("A")]),
        ([assistant("", tool_calls=f"[{CALL}]")], [assistant("", **F)]),
        ([assistant("", tool_calls=[CALL])], [assistant("", **F)]),
    ],
)  # fmt: skip
def test_thoughts_and_calls_of_many_shapes(turns: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    assert parse_messages(turns, "messages") == messages


def test_thoughts_that_differ_are_refused() -> None:
    with pytest.raises(
        DataError, match="several texts of thoughts that differ: reasoning_content, reasoning"
    ) as caught:
        parse_messages([assistant("A", reasoning_content="so", reasoning="no")], "messages")
    assert caught.value.kind == "two texts of thoughts"


RESULT = {"role": "tool", "content": "20", "tool_call_id": "t"}


@pytest.mark.parametrize(
    ("turn", "messages"),
    [
        # Anthropic's.
        (user([{"type": "tool_result", "tool_use_id": "t", "content": "20"}]), [RESULT]),
        (user([{"type": "text", "text": "and?"},
               {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "20"}]},
               {"type": "tool_result", "tool_use_id": "u", "content": None}]),
         [RESULT, {"role": "tool", "content": "", "tool_call_id": "u"}, user("and?")]),
        # Values of JSON that were not written as text.
        ({"role": "tool", "content": {"type": "place", "t": 20}},
         [{"role": "tool", "content": '{"type": "place", "t": 20}'}]),
        ({"role": "tool", "content": [{"city": "Rom", "t": "ü"}]},
         [{"role": "tool", "content": '[{"city": "Rom", "t": "ü"}]'}]),
        ({"from": "observation", "value": 20}, [{"role": "tool", "content": "20"}]),
        ({"role": "tool", "content": []}, [{"role": "tool", "content": "[]"}]),
        ({"role": "tool", "content": None}, [{"role": "tool", "content": ""}]),
        ({"role": "tool", "content": [{"type": "text", "text": "2"}, {"type": "text", "value": "0"}]},
         [{"role": "tool", "content": "20"}]),
    ],
)  # fmt: skip
def test_results_of_many_shapes(turn: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    made = parse_messages([assistant("", **F), turn], "messages")
    assert made[1:] == messages


@pytest.mark.parametrize(
    "turn",
    [
        user([{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]),
        {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
    ],
)
def test_results_that_are_pictures_are_refused(turn: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="must be text"):
        parse_messages([assistant("", **F), turn], "messages")
