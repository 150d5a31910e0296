"""Held-out records that are trained as well are counted and said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset

from hftune.arguments.entry import parse_arguments
from hftune.data.encode import ChatEncoder
from hftune.data.splits import load_data, row_digests, say_shared_files, say_shared_records
from tests.conftest import CHATS
from tests.unit.data.helpers import make_tokenizer


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notices of a test."""
    monkeypatch.setattr("hftune.logging._notices", found := [])
    return found


def pairs(*rows: tuple[list[int], list[int]]) -> Dataset:
    return Dataset.from_dict(
        {"prompt_ids": [a for a, _ in rows], "chosen_ids": [b for _, b in rows], "length": [1] * len(rows)}
    )


def test_rows_are_told_apart_by_all_their_ids() -> None:
    rows = pairs(([1, 2], [3]), ([1], [2, 3]), ([1, 2], [3]), ([], [1, 2, 3]))
    first, second, again, last = row_digests(rows)
    assert first == again and len({first, second, last}) == 3
    assert list(row_digests(rows.select([1, 3]))) == [second, last], "rows of a part begin elsewhere"
    text = Dataset.from_dict({"prompt": [[{"role": "user", "content": one}] for one in "aba"], "answer": [1, 1, 1]})
    first, second, again = row_digests(text)
    assert first == again != second


def test_held_out_rows_that_are_trained_are_counted(said: list[str]) -> None:
    train = [pairs(([1], [2]), ([3], [4])), pairs(([5], [6]))]
    say_shared_records(train, [pairs(([7], [8]))])
    assert not said
    say_shared_records(train, [pairs(([5], [6]), ([7], [8]), ([5], [6]))])
    assert "2 of the 3 held-out records are trained as well" in said[-1]
    say_shared_records(train, [pairs(([3], [4]))])
    assert "all of the 1 held-out records" in said[-1]


def test_files_of_streams_are_compared_by_name(said: list[str]) -> None:
    say_shared_files(["a", "b"], ["c"])
    assert not said
    say_shared_files(["a", "b"], ["b"])
    assert "b: trained and held out at once" in said[-1]


@pytest.mark.parametrize("flags", [(), ("--packing", "True"), ("--streaming", "True", "--max_steps", "2")])
def test_a_run_says_so(tmp_path: Path, said: list[str], flags: tuple[str, ...]) -> None:
    """A folder below the training data is searched with it."""
    held = tmp_path / "data" / "held" / "a.jsonl"
    held.parent.mkdir(parents=True)
    for file, rows in ((held, CHATS[:3]), (tmp_path / "data" / "b.jsonl", CHATS[3:9])):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ["--model_name_or_path", "none", "--output_dir", str(tmp_path / "out"), "--use_cpu", "True"]
    argv += ["--train_file_dir", str(tmp_path / "data"), "--validation_file_dir", str(held.parent), *flags]
    _, data_args, _, training_args = parse_arguments("sft", argv)
    encoder = ChatEncoder.from_arguments(make_tokenizer(), training_args)
    load_data(encoder, data_args, training_args)
    words = "trained and held out at once" if "--streaming" in flags else "all of the 3 held-out records"
    assert any(words in line for line in said)
