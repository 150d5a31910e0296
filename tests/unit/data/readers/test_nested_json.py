"""JSON in a string of a record is read as strictly as the record."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.readers.nested_json import BAD_JSON, from_json
from hftune.errors import DataError


@pytest.mark.parametrize(("value", "found"), [('{"a": [1]}', {"a": [1]}), ("null", None), ({"a": 1}, {"a": 1}), (7, 7)])
def test_strings_are_decoded_and_all_else_passes(value: Any, found: Any) -> None:
    assert from_json(value, "f:1", "the call", fix="Fix it.") == found


@pytest.mark.parametrize(
    ("value", "words", "fix"),
    [
        ("{", "the call is not JSON: ", "Fix it."),
        ('{"a": 1, "a": 2}', "is there twice", "Keep one of them."),
        ('{"a": 1e999}', "out of range", "Write it as a string."),
        ('"\ud83d"', "not UTF-8", "iconv"),
    ],
)
def test_what_would_lose_something_is_refused(value: str, words: str, fix: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        from_json(value, "f:1", "the call", fix="Fix it.")
    assert caught.value.kind == BAD_JSON and caught.value.place == "f:1" and fix in str(caught.value.fix)
