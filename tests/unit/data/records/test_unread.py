"""What is passed over is noted, a record counting once."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.formats import added, describe_unread, has_text, note_unread, take_unread
from hftune.data.messages import parse_messages
from tests.unit.data.helpers import assistant, make_tokenizer, row, template, tokenize_chat, user


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", True), (" ", False), (None, False), (7, False), ({"a": 1, "b": ["", "c"]}, True), ([{}, {"a": ""}], False)],
)
def test_text(value: Any, text: bool) -> None:
    assert has_text(value) == text


def test_records_are_counted() -> None:
    take_unread()
    for origin in ("f:1", "f:1", "f:3"):
        note_unread("x", origin)
    found = take_unread()
    assert found == {"x": [2, "f:1"]} and take_unread() == {}
    both = added(found, {"x": [1, "g:1"], "y": [4, "g:2"]})
    assert both == {"x": [3, "f:1"], "y": [4, "g:2"]}
    assert next(describe_unread(both)) == "not read: x, in 3 record(s) (first: f:1)"


def test_names_that_never_end_are_counted_together() -> None:
    take_unread()
    for number in range(50):
        note_unread(f"x{number}", f"f:{number}")
    found = take_unread()
    assert len(found) == 21 and found["further fields and columns"] == [30, "f:20"]
    both = added(found, {"x3": [1, "g:1"], "new": [4, "g:2"]})
    assert len(both) == 21 and both["x3"] == [2, "f:3"] and both["further fields and columns"] == [34, "f:20"]


@pytest.mark.parametrize(
    ("turn", "what"),
    [
        (assistant("A", notes="because"), ['"notes" of a turn of assistant']),
        (assistant("A", meta={"by": ["me"]}, id=7, index=None), ['"meta" of a turn of assistant']),
        ({**user("Q"), "reasoning": "so"}, ['"reasoning" of a turn of user']),
        (assistant("A", reasoning={"effort": "high"}), ['"reasoning" of a turn of assistant']),
        ({"from": "gpt", "value": "A", "content": "B"}, ['"content" of a turn of assistant']),
        ({"role": "assistant", "content": "A", "value": "B"}, ['"value" of a turn of assistant']),
        ({"human": "Q", "assistant": "A", "notes": "because"}, ['"notes" of a turn of assistant']),
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "A"}]},
         ["parts of the type redacted_thinking"]),
        (assistant("A", weight=1, reasoning="", tool_calls=[], name="n", train=True), []),
        ({"from": "gpt", "value": "A", "content": None, "role": None}, []),
    ],
)  # fmt: skip
def test_what_a_turn_holds_and_is_not_read(turn: dict[str, Any], what: list[str]) -> None:
    take_unread()
    parse_messages([turn], "f:1", "messages")
    assert [*take_unread()] == what


def test_columns_of_thoughts_and_tools_that_no_template_writes() -> None:
    rows = [
        row(1, prompt="Q", completion="A", reasoning="because", thinking=None),
        row(2, messages=[user("Q"), assistant("A")], tools=[{"name": "f"}]),
    ]
    _, counts = tokenize_chat(rows, make_tokenizer(), max_length=None)
    assert counts.unread == {
        'the column "reasoning"': [1, "data.jsonl:1"],
        "tools, which the chat template does not write": [1, "data.jsonl:2"],
    }
    _, counts = tokenize_chat(rows[1:], make_tokenizer(template("qwen3")), max_length=None)
    assert counts.unread == {}


def test_a_run_counts_what_is_not_read() -> None:
    rows = [row(line, messages=[user("Q"), assistant("A", notes="n")]) for line in (1, 2)]
    rows.append(row(3, messages=[user("Q"), assistant("A", reasoning_effort="n")]))
    _, counts = tokenize_chat(rows, make_tokenizer(), max_length=None)
    assert counts.unread == {
        '"notes" of a turn of assistant': [2, "data.jsonl:1"],
        '"reasoning_effort" of a turn of assistant': [1, "data.jsonl:3"],
    }
    assert counts.to_dict()["unread"] == counts.unread
    _, others = tokenize_chat([row(messages=[user("Q"), assistant("A")])], make_tokenizer(), max_length=None)
    assert "unread" not in others.to_dict()
    others.add(counts)
    assert others.unread == counts.unread
