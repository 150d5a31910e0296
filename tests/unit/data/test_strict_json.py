"""Depth of JSON, and JSON in strings of a record; what each line may hold is in test_text.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hftune.data.strict_json import MAX_DEPTH, from_json, loads
from hftune.errors import DataError


@pytest.mark.parametrize("depth", [1, MAX_DEPTH, MAX_DEPTH + 1, 1000, 50_000])
def test_depth(depth: int) -> None:
    raw = b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)
    if depth <= MAX_DEPTH:
        assert loads(raw) == json.loads(raw)
        return
    with pytest.raises(DataError, match="nested deeper than 100 levels"):
        loads(raw)


@pytest.mark.parametrize(("value", "found"), [('{"a": [1]}', {"a": [1]}), ("null", None), ({"a": 1}, {"a": 1}), (7, 7)])
def test_strings_of_a_record_are_decoded_and_all_else_passes(value: Any, found: Any) -> None:
    assert from_json(value, "the call", fix="Fix it.") == found


@pytest.mark.parametrize(
    ("value", "words", "fix"),
    [
        ("{", "the call is not JSON: ", "Fix it."),
        ('{"a": 1, "a": 2}', "is there twice", "Keep one of them."),
        ('"\ud83d"', "not UTF-8", "iconv"),
    ],
)
def test_a_string_of_a_record_that_would_lose_something_is_refused(value: str, words: str, fix: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        from_json(value, "the call", fix="Fix it.")
    assert caught.value.kind == "malformed JSON in a string" and fix in str(caught.value.fix)
