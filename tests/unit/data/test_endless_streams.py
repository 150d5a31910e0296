"""`--streaming`: rows become examples while training, and held-out records are tokenised ahead."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hftune.arguments.entry import parse_arguments
from hftune.data import endless
from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.endless import StreamEncoder
from hftune.data.splits import load_data
from hftune.data.streaming import StreamingDataset
from hftune.errors import ArgumentError, DataError
from hftune.logging import notices
from tests.unit.data.helpers import assistant, row, user

TALK = [user("q"), assistant("a")]


def test_a_row_becomes_columns_of_numbers(chatml: PreTrainedTokenizerFast) -> None:
    encode = StreamEncoder(ChatEncoder(chatml, max_length=None), {"messages": "talk"})
    (example,) = encode(row(talk=TALK))
    assert set(example) == {"input_ids", "labels"}
    assert all(isinstance(column, np.ndarray) and column.dtype == np.int32 for column in example.values())
    assert chatml.decode(example["input_ids"]).endswith("a<|im_end|>\n")


def test_a_row_gives_none_one_or_several_examples(chatml: PreTrainedTokenizerFast) -> None:
    with pytest.raises(DataError):
        StreamEncoder(ChatEncoder(chatml, max_length=None), {})(row(nothing=1))
    assert StreamEncoder(ChatEncoder(chatml, max_length=2), {})(row(messages=TALK)) == []
    blocks = StreamEncoder(TextEncoder(chatml, block_size=4), {})(row(text="a b c d e f g h"))
    assert [len(block["input_ids"]) for block in blocks][:2] == [4, 4]


def test_what_is_not_read_is_said_once(chatml: PreTrainedTokenizerFast) -> None:
    encode = StreamEncoder(ChatEncoder(chatml, max_length=None), {})
    for _ in range(2):
        encode(row(messages=[TALK[0], {**TALK[1], "asides": "because"}]))
    assert notices().count('not read: "asides" of a turn of assistant, in records of the stream') == 1


def test_only_training_records_are_streamed(chatml: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    for name, count in (("train", 5), ("held", 2)):
        lines = [json.dumps({"messages": [user(f"{name} {number}"), assistant("a")]}) for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    flags = ["--streaming", "--max_steps", "3", "--data_cache_dir", str(tmp_path / "cache"), "--output_dir", "o"]
    files = ["--train_file_dir", str(tmp_path / "train.jsonl"), "--validation_file_dir", str(tmp_path / "held.jsonl")]
    _, data_args, _, args = parse_arguments("sft", [*flags, *files])
    found = load_data(ChatEncoder(chatml, max_length=64), data_args, args)
    assert isinstance(found.train, StreamingDataset) and found.about["train"]["streamed"]
    assert found.evaluation is not None and len(found.evaluation) == found.about["eval"]["used"] == 2
    stream = iter(found.train)
    asked = {chatml.decode(next(stream)["input_ids"]).split("\n")[1] for _ in range(5)}
    assert asked == {f"train {number}<|im_end|>" for number in range(5)}


def open_on(path: str, tokenizer: PreTrainedTokenizerFast) -> StreamingDataset:
    flags = ["--streaming", "--max_steps", "3", "--output_dir", "o", "--train_file_dir", path]
    _, data_args, _, args = parse_arguments("sft", flags)
    return load_data(ChatEncoder(tokenizer, max_length=64), data_args, args).train  # type: ignore[return-value]


def test_a_number_of_records_is_refused(chatml: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"messages": TALK}))
    with pytest.raises(ArgumentError, match="a stream has all records") as error:
        open_on(f"{file}#1,{file}", chatml)
    assert str(error.value.place) == f"--streaming, --train_file_dir {file}#1"


def test_data_are_told_apart_without_reading_them_all(
    chatml: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their size, beginning and end: the middle of a large file is not read before the first step."""
    monkeypatch.setattr(endless, "_SAMPLE", 8)
    file = tmp_path / "train.jsonl"
    keys = set()
    for text in ("0123456789_middle_0123456789", "0123456789_MIDDLE_0123456789"):
        file.write_text(text)
        keys.add(open_on(str(file), chatml).settings.data)
    assert len(keys) == 1
    for text in ("x123456789_middle_0123456789", "0123456789_middle_012345678x", "0123456789_middle__0123456789"):
        file.write_text(text)
        keys.add(open_on(str(file), chatml).settings.data)
    assert len(keys) == 4


def test_data_of_the_hub_are_told_apart_by_their_revision(
    chatml: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of their files is there when the stream is opened."""
    keys = set()
    for revision in ("0123", "4567"):
        file = f"hf://datasets/owner/name@{revision}/a.jsonl"
        monkeypatch.setattr(endless, "stream_files", lambda path, flag, file=file: [file])
        keys.add(open_on("owner/name", chatml).settings.data)
    assert len(keys) == 2
