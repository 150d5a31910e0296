"""500 broken and odd files: each record is usable, or an error with its place, and none is lost without a word."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hftune.data.compared_answers import to_preference
from hftune.data.readers.base import Row
from hftune.data.readers.files import chunks, find_files
from hftune.data.records import to_conversation, to_labelled, to_prompt, to_text
from hftune.errors import DataError
from tests.unit.data.helpers import read_rows
from tests.unit.data.readers.fuzz_files import fuzzed_file

pytestmark = pytest.mark.long

FLAG = "--train_file_dir"
CONVERTERS = (to_text, to_conversation, to_preference, to_prompt, to_labelled)
OF_A_FILE = {"file without a record", "damaged file", "unreadable file", "empty file", "duplicate key"}
"""Kinds of faults that may lie in no line: the place is then the file alone."""


def check_error(error: DataError, file: Path, lines: int) -> None:
    """The error says what, where and what to do, and has a kind of its own."""
    assert error.cause and "\n" not in error.cause and len(error.cause) < 3000
    assert error.fix
    assert error.kind != "unusable record"
    place = re.fullmatch(re.escape(str(file)) + r"(?::(\d+))?", error.place or "")
    assert place, error.place
    if place.group(1) is None:
        assert error.kind in OF_A_FILE, error
    elif file.suffix not in (".parquet", ".arrow", ".gz", ".zst"):
        assert 1 <= int(place.group(1)) <= lines + 1


def check_usable(made: Any) -> None:
    """Text that can be tokenised: all of it is Unicode, and every message has a role and a text."""
    if isinstance(made, str):
        made.encode("utf-8")
        assert made.strip()
        return
    parts = [getattr(made, name, []) for name in ("messages", "prompt", "chosen", "rejected", "completion")]
    for message in (message for part in parts for message in part):
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
        json.dumps(message, ensure_ascii=False).encode("utf-8")


def use(file: Path, convert: Callable[[Row], Any], lines: int) -> tuple[int, int, int]:
    """(read, used, dropped) of a file, through chunks that have travelled to another process."""
    used, dropped = 0, 0
    for chunk in chunks([file], rows_per_chunk=3):
        for read in pickle.loads(pickle.dumps(chunk)).rows():
            try:
                if isinstance(read, DataError):
                    raise pickle.loads(pickle.dumps(read))
                check_usable(convert(read))
                used += 1
            except DataError as error:
                check_error(error, file, lines)
                dropped += 1
    return used + dropped, used, dropped


@pytest.mark.parametrize("seed", range(500))
def test_every_record_is_used_or_said(seed: int, tmp_path: Path) -> None:
    name, content = fuzzed_file(seed)
    file = tmp_path / name
    file.write_bytes(content)
    if not content:
        with pytest.raises(DataError, match=r"empty \(0 bytes\)"):
            find_files(str(file), FLAG)
        return
    lines = content.count(b"\n") + 1
    reads = {use(file, convert, lines)[0] for convert in CONVERTERS}
    assert len(reads) == 1 and reads != {0}
    if name.endswith((".jsonl", ".ndjson", ".txt")):
        # Every line with something on it is a record; an empty BOM line is none.
        held = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
        assert reads == {max(1, len(held))}
    check_read_rows(file, reads.pop())


def check_read_rows(file: Path, total: int) -> None:
    """What is left out has a kind each; without leave to drop, the first bad record stops."""
    reads = [read for chunk in chunks([file]) for read in chunk.rows()]
    dropped = [read.kind for read in reads if isinstance(read, DataError)]
    # How much of a damaged file can be had depends on how much is asked for at a time.
    assert len(reads) == total or "damaged file" in dropped
    if dropped:
        with pytest.raises(DataError) as caught:
            read_rows([file])
        assert caught.value.kind in dropped
    else:
        assert len(read_rows([file])) == total


def test_the_files_are_of_all_kinds() -> None:
    """The generator still makes what it is for: whole and broken files of every kind."""
    names = Counter(fuzzed_file(seed)[0] for seed in range(500))
    for suffix in (
        ".jsonl",
        ".ndjson",
        ".json",
        ".txt",
        ".csv",
        ".tsv",
        ".parquet",
        ".arrow",
        ".jsonl.gz",
        ".json.zst",
    ):
        assert names[f"file{suffix}"] >= 3, names
