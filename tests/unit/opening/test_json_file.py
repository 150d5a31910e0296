"""JSON is read within limits; a fault is one message with its file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.errors import ArgumentError, ManifestError
from hftune.opening.json_file import parse_json, read_json

BAD: dict[str, tuple[bytes, str, int | None]] = {
    # name: content, words of the message, line
    "empty": (b"", "not valid JSON: Expecting value", 1),
    "cut off": (b'{"a":\n 1,', "not valid JSON", 2),
    "not closed": (b'{\n"a": "b', "Unterminated string", 2),
    "not text": (b'{\n\n"a": "\xff\xfe"}', "not text in UTF-8", 3),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "not text in UTF-8", 1),
    "a mark of order": (b'\xef\xbb\xbf{"a": 1}', "not valid JSON", 1),
    "brackets": (b"[" * 100_000, "brackets are nested too deeply", None),
    "braces": (b'{"a":' * 100_000, "brackets are nested too deeply", None),
    "closed brackets": (b"[" * 100_000 + b"]" * 100_000, "brackets are nested too deeply", None),
    "digits": (b'{"a": 1' + b"0" * 100_000 + b"}", "Exceeds the limit", None),
    "below zero": (b'{"a": -1' + b"0" * 5_000 + b"}", "Exceeds the limit", None),
    "twice": (b'{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' is there twice", None),
    "list": (b"[]", r"it is a list \[...\], where an object {...} is wanted", 1),
    "text": (b'"a"', "it is a text, where", 1),
    "null": (b"null", "it is null, where", 1),
    "truth": (b"true", "it is a bool, where", 1),
    "number": (b"3", "it is a number, where", 1),
    "half a character": (b'{"a": "\\ud800"}', "surrogates not allowed", None),
    "two": (b"{}{}", "Extra data", 1),
    "a zero byte": (b'{"a": "\x00"}', "Invalid control character", 1),
}


@pytest.mark.parametrize("name", BAD)
def test_faults(tmp_path: Path, name: str) -> None:
    content, words, line = BAD[name]
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ManifestError, match=words) as problem:
        read_json(file, fix="the way out")
    assert problem.value.place == (f"{file}:{line}" if line else str(file))
    assert problem.value.cause.startswith(str(file)) and problem.value.fix == "the way out"
    assert len(str(problem.value)) < 700
    with pytest.raises(ArgumentError, match=words):
        parse_json(content, "--flag", error=ArgumentError)


@pytest.mark.parametrize("value", [{}, {"a": [1, -2, 0.5, None, True, "\U0001f600"]}, {"n": 10**30}, {"e": 1e300}])
def test_what_is_fine(tmp_path: Path, value: dict[str, Any]) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(value))
    assert read_json(file) == value
    assert parse_json(json.dumps(value, ensure_ascii=False), "text") == value


def test_other_kinds() -> None:
    assert parse_json("[1]", "x", kind=list) == [1]
    assert parse_json("null", "x", kind=None) is None
    assert parse_json("3", "x", kind=int) == 3
    with pytest.raises(ManifestError, match="where a number is wanted"):
        parse_json("true", "x", kind=int)
    with pytest.raises(ManifestError, match=r"it is an object \{\.\.\.\}, where a list"):
        parse_json("{}", "x", kind=list)


def test_logs_may_hold_what_is_no_number(tmp_path: Path) -> None:
    """The Trainer writes a loss that is none as NaN."""
    found = parse_json('{"a": NaN, "b": 1e999}', "x")
    assert found["a"] != found["a"] and found["b"] == float("inf")


def test_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": 1}')
    assert read_json(file, limit=8) == {"a": 1}
    with pytest.raises(ManifestError, match="at most 7 bytes"):
        read_json(file, limit=7)


def test_pairs_of_surrogates_are_text() -> None:
    assert parse_json(r'{"a": "\ud83d\ude00"}', "x") == {"a": "\U0001f600"}


def test_text_with_half_a_character_is_refused() -> None:
    with pytest.raises(ArgumentError, match="not text in UTF-8"):
        parse_json('{"a": "\ud800"}', "--flag", error=ArgumentError)
