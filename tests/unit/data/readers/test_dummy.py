"""Generated records: as many as asked for, always the same, usable by the stage that they are for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from hftune.data.compared_answers import to_preference
from hftune.data.readers.dummy import KINDS, dummy_chunks
from hftune.data.readers.files import Row
from hftune.data.records import to_conversation, to_labelled, to_prompt, to_text
from hftune.errors import ArgumentError

READERS: dict[str, Callable[[Row], Any]] = dict(
    zip(KINDS, (to_text, to_conversation, to_preference, to_prompt, to_labelled), strict=True)
)


@pytest.mark.parametrize("kind", KINDS)
def test_records(kind: str) -> None:
    found = list(dummy_chunks(600, kind, rows_per_chunk=256, words=40))
    rows = [row for chunk in pickle.loads(pickle.dumps(found)) for row in chunk.rows()]
    assert [row.origin for row in rows] == [f"dummy_data:{number}" for number in range(1, 601)]
    made = [str(READERS[kind](row)) for row in rows if isinstance(row, Row)]
    assert len(set(made)) == 600
    # A record does not depend on how many there are, nor on the chunk it is in.
    again = [row for chunk in dummy_chunks(300, kind, rows_per_chunk=7, words=40) for row in chunk.rows()]
    assert again == rows[:300]


def test_length() -> None:
    lengths = [
        len(row.value["text"].split()) - 1 for chunk in dummy_chunks(400, "text", words=100) for row in chunk.rows()
    ]
    assert min(lengths) >= 50 and max(lengths) <= 150 and 90 < sum(lengths) / len(lengths) < 110


def test_none() -> None:
    with pytest.raises(ArgumentError, match="0 generated records"):
        list(dummy_chunks(0, "text"))
