"""Chunks to an Arrow file, in one process and in several; counts of what became of records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from datasets import load_from_disk
from transformers import PreTrainedTokenizerFast

from hftune.data import encoder
from hftune.data.counts import Counts, describe_turn_tokens
from hftune.data.encode import ChatEncoder
from hftune.data.encoder import without_counts, write_tokenised
from hftune.data.files import chunks, find_files, first_rows
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, tokenize_chat, user
from tests.unit.data.test_turn_tokens import PREFERENCE, encoded


def write(file: Path, count: int, bad: int = -1) -> Path:
    records = [{"messages": [user(str(n)), assistant(f"n {n} 天气" * (1 + n % 7))]} for n in range(count)]
    lines = [json.dumps(record) if n != bad else '{"messages": [' for n, record in enumerate(records)]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.mark.parametrize("count", [0, 1, 2])
def test_workers_give_the_same(chatml: PreTrainedTokenizerFast, tmp_path: Path, count: int) -> None:
    file = write(tmp_path / "d.jsonl", 100)
    folder = tmp_path / "out"
    folder.mkdir()
    counts = write_tokenised(chunks([file], 8), ChatEncoder(chatml, max_length=20), folder, workers=count)
    dataset = load_from_disk(str(folder))
    rows = [row for chunk in chunks([file]) for row in chunk.rows()]
    expected, expected_counts = tokenize_chat(rows, chatml, max_length=20)
    assert without_counts(dataset).to_dict() == expected.to_dict()
    assert counts == expected_counts
    assert counts.truncated and counts.used == 100
    assert dataset.cache_files


@pytest.mark.parametrize("count", [1, 2])
def test_a_bad_record_stops_or_is_counted(chatml: PreTrainedTokenizerFast, tmp_path: Path, count: int) -> None:
    file = write(tmp_path / "d.jsonl", 100, bad=61)
    encoder = ChatEncoder(chatml, max_length=20)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="malformed JSON") as caught:
        write_tokenised(chunks([file], 8), encoder, tmp_path / "a", workers=count)
    assert caught.value.place == f"{file}:62" and "62" in str(caught.value)
    counts = write_tokenised(chunks([file], 8), encoder, tmp_path / "b", workers=count, on_bad_record="drop")
    assert (counts.rows, counts.used, counts.dropped) == (100, 99, {"malformed JSON": 1})
    assert counts.examples["malformed JSON"].startswith(f"{file}:62: malformed JSON")


@pytest.mark.parametrize("count", [1, 2])
def test_one_message_counts_all_bad_records(
    chatml: PreTrainedTokenizerFast, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "d.jsonl", 100, bad=21)
    lines = file.read_text(encoding="utf-8").splitlines()
    for place in (22, 50, 99):
        lines[place] = '{"messages": 3}'
    file.write_text("\n".join(lines), encoding="utf-8")
    encoder = ChatEncoder(chatml, max_length=20)
    (tmp_path / "a").mkdir()
    with pytest.raises(
        DataError, match=r"malformed JSON.*the first of 4 records that cannot be used, among 100\)"
    ) as caught:
        write_tokenised(chunks([file], 8), encoder, tmp_path / "a", workers=count)
    assert caught.value.place == f"{file}:22"
    monkeypatch.setattr("hftune.data.encoder.LOOKED_FURTHER", 16)
    with pytest.raises(DataError, match=r"the first of 2 records that cannot be used, among \d+"):
        write_tokenised(chunks([file], 8), encoder, tmp_path / "a", workers=count)


def test_first_rows(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.jsonl", 5), write(tmp_path / "b.jsonl", 5)]
    found = first_rows(chunks(find_files(str(tmp_path), "--train_file_dir"), 2), 7)
    rows = [row for chunk in found for row in chunk.rows()]
    assert [(row.file, row.line) for row in rows] == [
        *((str(files[0]), line) for line in range(1, 6)),
        *((str(files[1]), line) for line in range(1, 3)),
    ]


def _where(item: int) -> tuple[int, int]:
    if item == 50:
        raise DataError("fifty", place="here:50", fix="Nothing.", kind="fifty")
    return item, os.getpid()


def test_workers_keep_order_and_read_no_more_than_they_need() -> None:
    read = []

    def items() -> object:
        for number in range(50):
            read.append(number)
            yield number

    found = []
    for number, process in encoder.map_in_order(_where, items(), 2):
        found.append(number)
        assert process != os.getpid()
        assert len(read) <= len(found) + encoder.WORTH_WORKERS + 2 * encoder.AHEAD
    assert found == list(range(50))


def test_errors_keep_their_place_on_the_way_from_a_worker() -> None:
    seen = []
    with pytest.raises(DataError) as caught:
        for number, _ in encoder.map_in_order(_where, iter(range(60)), 2):
            seen.append(number)
    assert seen == list(range(50))
    assert (caught.value.place, caught.value.fix, caught.value.kind) == ("here:50", "Nothing.", "fifty")


def test_counts_are_of_records_and_add_up() -> None:
    counts, more = Counts(rows=2), Counts(rows=1)
    counts.note_turn_tokens(["a", "a", "b"])
    counts.note_turn_tokens([])
    more.note_turn_tokens(["b"])
    counts.add(more)
    assert (counts.bordered, counts.borders) == (2, {"a": 1, "b": 2})
    assert counts.to_dict()["borders"] == {"a": 1, "b": 2} and "borders" not in Counts().to_dict()
    assert Counts(**counts.to_dict()) == counts
    assert "2 of 3 records" in describe_turn_tokens(counts, "split") and "stay text" in describe_turn_tokens(
        counts, "split"
    )
    assert "encoded as these tokens" in describe_turn_tokens(counts, "allow")


def test_a_pair_counts_as_one_record() -> None:
    _, counts, _ = encoded("dpo", "split", PREFERENCE)
    assert counts.bordered == 1 and set(counts.borders.values()) == {1}
