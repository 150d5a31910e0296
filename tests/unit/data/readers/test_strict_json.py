"""Any JSON is what the standard library makes of it, but for what would lose something."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.readers.strict_json import MAX_DEPTH, Malformed, loads

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
