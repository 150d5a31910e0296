"""Attack: numbers in files and names that would fill the memory or never end; each is refused at once."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest
from datasets import Dataset

from hftune.data import sources as parts
from hftune.data.counts import Counts
from hftune.data.sources import TokenizedSource, draw_records
from hftune.data.specs import parse_sources
from hftune.errors import ArgumentError, DataError


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    """Seconds of the processor where milliseconds are wanted and minutes to fear, and no gigabyte."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000, "kilobytes"


# --- records that are taken ------------------------------------------------------------------------------------------


def part(records: int) -> TokenizedSource:
    columns = {"input_ids": [[1, 2]] * records, "length": [2] * records}
    return TokenizedSource(Dataset.from_dict(columns), Counts(), ["a"], "key")


@pytest.mark.parametrize("number", [999_999_999, 10**11, 3_001, 10**8 + 1])
def test_records_taken_by_the_billion(number: int) -> None:
    with pytest.raises(DataError) as error:
        draw_records(part(3), number, 0, "--train_file_dir a.jsonl")
    assert f"--train_file_dir a.jsonl#{number}" in str(error.value) and "times an epoch" in str(error.value)


def test_nothing_is_repeated_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_REPEATED", 10)
    assert len(draw_records(part(20), 15, 0).dataset) == 15, "fewer than there are repeat nothing"
    with pytest.raises(DataError):
        draw_records(part(5), 11, 0)


@pytest.mark.parametrize("digits", ["9" * 13, "9" * 5_000, "0", "-1", "1e9", "٣" * 20, ""])
def test_numbers_that_are_none(digits: str) -> None:
    with pytest.raises(ArgumentError) as error:
        parse_sources(f"data.jsonl#{digits}")
    assert "PATH#500" in str(error.value) and len(str(error.value)) < 500


# --- numbers on the command line and in files -------------------------------------------------------------------------
