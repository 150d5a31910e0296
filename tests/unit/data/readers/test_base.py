"""Rows know their place; what cannot be read is one error with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.data.readers.base import FailedChunk, ParsedChunk, Row, is_compressed, no_record, too_large, unreadable


def test_a_row_names_its_place() -> None:
    assert Row({"a": 1}, "folder/a.jsonl", 7).origin == "folder/a.jsonl:7"


@pytest.mark.parametrize(
    ("name", "packed"), [("a.jsonl.gz", True), ("a.JSON.ZST", True), ("gz", False), ("a.gzip", False)]
)
def test_what_names_a_compressed_file(name: str, packed: bool) -> None:
    assert is_compressed(Path(name)) is packed


def test_chunks_give_what_they_hold() -> None:
    rows = [Row({"a": 1}, "a", 1), too_large("a:2")]
    assert list(ParsedChunk([*rows], "a").rows()) == rows
    for chunk, kind in ((no_record(Path("a")), "file without a record"), (unreadable("a", "no"), "unreadable file")):
        assert isinstance(chunk, FailedChunk) and chunk.file == "a"
        (error,) = chunk.rows()
        assert error is chunk.error and error.kind == kind and error.place == "a" and error.fix
