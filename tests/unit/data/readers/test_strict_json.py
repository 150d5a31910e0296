"""Any JSON is what the standard library makes of it, but for what would lose something."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.readers.strict_json import BAD_JSON, MAX_DEPTH, Malformed, from_json, loads
from hftune.errors import DataError

# Few keys, so that one often comes twice, and many escapes.
STRINGS = st.text(st.sampled_from('ab":\\ \n世🙂'), max_size=5)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | STRINGS
# An object is a list of pairs here, so that a key may come twice.
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.lists(st.tuples(STRINGS, inner), max_size=4),
    max_leaves=12,
)

ESCAPES = {'"': "\\u0022", "\\": "\\u005c", "\n": "\\n", ":": "\\u003A"}


def write(value: Any, rng: random.Random) -> str:
    """JSON text of lists (tuples here), objects (lists of pairs) and leaves, with escapes and blanks at random."""
    blank = rng.choice(["", "", " ", "\t\n"])
    if isinstance(value, tuple):
        return f"[{blank}{','.join(write(part, rng) for part in value)}{blank}]"
    if isinstance(value, list):
        pairs = (f"{write(key, rng)}{blank}:{blank}{write(part, rng)}" for key, part in value)
        return "{" + f"{blank},".join(pairs) + "}"
    if isinstance(value, str) and rng.random() < 0.3:
        return '"' + "".join(ESCAPES.get(sign, sign) for sign in value) + '"'
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def has_twice(value: Any) -> bool:
    """Whether an object in it has a key twice."""
    if isinstance(value, list):
        keys = [key for key, _ in value]
        return len(set(keys)) < len(keys) or any(has_twice(part) for _, part in value)
    return isinstance(value, tuple) and any(has_twice(part) for part in value)


@settings(max_examples=500, deadline=None)
@given(value=VALUES, seed=st.integers(0, 2**32))
def test_like_the_standard_library(value: Any, seed: int) -> None:
    raw = write(value, random.Random(seed)).encode()
    if has_twice(value):
        with pytest.raises(Malformed, match="is there twice") as caught:
            loads(raw)
        assert caught.value.kind == "duplicate key"
    else:
        assert loads(raw) == json.loads(raw)


@pytest.mark.parametrize("depth", [1, MAX_DEPTH, MAX_DEPTH + 1, 1000, 50_000])
def test_depth(depth: int) -> None:
    raw = b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)
    if depth <= MAX_DEPTH:
        assert loads(raw) == json.loads(raw)
        return
    with pytest.raises(Malformed, match="nested deeper than 100 levels"):
        loads(raw)


@pytest.mark.parametrize(("value", "found"), [('{"a": [1]}', {"a": [1]}), ("null", None), ({"a": 1}, {"a": 1}), (7, 7)])
def test_strings_of_a_record_are_decoded_and_all_else_passes(value: Any, found: Any) -> None:
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
def test_a_string_of_a_record_that_would_lose_something_is_refused(value: str, words: str, fix: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        from_json(value, "f:1", "the call", fix="Fix it.")
    assert caught.value.kind == BAD_JSON and caught.value.place == "f:1" and fix in str(caught.value.fix)
