"""Broken files and odd records: each record is usable, or an error with its place, and none is lost without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.compared_answers import to_preference
from hftune.data.files import Row
from hftune.data.records import to_conversation, to_labelled, to_prompt, to_text
from hftune.errors import DataError
from tests.unit.data.test_chunks import KINDS, read, write

CONVERTERS = (to_text, to_conversation, to_preference, to_prompt, to_labelled)
KEYS = [
    *("text", "messages", "conversations", "role", "content", "from", "value", "weight", "prompt", "completion"),
    *("chosen", "rejected", "rejected_response", "margin", "instruction", "input", "output", "history", "system"),
    *("tools", "tool_calls", "label", "kto_tag", "src", "tgt", "response", "sort", "question", "answer", "images"),
]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", " ", "世", "user", "gpt", "{"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)
DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda content, at: content[:at],
    "without its beginning": lambda content, at: content[at:],
    "NULs": lambda content, at: content[:at] + b"\x00\x00" + content[at:],
    "no UTF-8": lambda content, at: content[:at] + b"\xed\xa0\x80\xff" + content[at:],
    "a quote": lambda content, at: content[:at] + b'"' + content[at:],
    "a flipped byte": lambda content, at: content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :],
    "a mark": lambda content, at: b"\xef\xbb\xbf" + content,
    "UTF-16": lambda content, at: content.decode("utf-8", "replace").encode("utf-16"),
}


def check_error(error: DataError, file: str) -> None:
    """The error says what, where and what to do, and has a kind of its own."""
    assert error.cause and "\n" not in error.cause and len(error.cause) < 3000
    assert error.fix and error.kind != "unusable record"
    assert (error.place or "").startswith(file)


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from([*KINDS]), damage=st.sampled_from([*DAMAGE]), at=st.floats(0, 1, exclude_max=True))
def test_every_record_of_a_damaged_file_is_read_or_said(
    tmp_path_factory: pytest.TempPathFactory, name: str, damage: str, at: float
) -> None:
    content = KINDS[name]()
    path = write(tmp_path_factory.mktemp("fuzz"), name, DAMAGE[damage](content, int(at * len(content))))
    rows, errors = read(path)
    assert rows or errors
    for error in errors:
        check_error(error, str(path))
    for row in rows:
        json.dumps(row.value, ensure_ascii=False).encode("utf-8")


def check_usable(made: Any) -> None:
    """Text that can be tokenised: all of it is Unicode, and every message has a role and a text."""
    if isinstance(made, str):
        assert made.strip()
        return
    parts = [getattr(made, name, []) for name in ("messages", "prompt", "chosen", "rejected", "completion")]
    for message in (message for part in parts for message in part):
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)


@settings(max_examples=80, deadline=None)
@given(record=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=5))
def test_every_odd_record_is_used_or_said(record: dict[str, Any]) -> None:
    for convert in CONVERTERS:
        try:
            check_usable(convert(Row(record, "a.jsonl", 1)))
        except DataError as error:
            check_error(error, "a.jsonl:1")
