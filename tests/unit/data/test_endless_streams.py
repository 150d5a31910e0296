"""`--streaming`: rows become examples while training, and held-out records are tokenised ahead."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.data import endless
from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.endless import StreamEncoder, find_folders, open_tokenized
from hftune.data.splits import load_data
from hftune.data.streaming import StreamingDataset
from hftune.errors import ArgumentError, DataError
from hftune.logging import notices
from tests.unit.data.corpora import write_corpus
from tests.unit.data.helpers import assistant, make_tokenizer, row, user

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


def opened(asked: DataArguments, tokenizer: Any, *, block_size: int, seed: int) -> Any:
    training: Any = SimpleNamespace(block_size=block_size, seed=seed, data_seed=None)
    return open_tokenized(TextEncoder(tokenizer), asked, training)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """web: tokens 0 to 59 in 20 documents; code: 60 to 69 in 2; held_out: 70 to 76 in 1."""
    root = tmp_path_factory.mktemp("corpora")
    write_corpus(root / "web", [3] * 20)
    write_corpus(root / "code", [4, 6], first_token=60)
    (root / "not-tokenised").mkdir()
    write_corpus(root / "elsewhere" / "held_out", [7], first_token=70)
    return root


def test_a_folder_of_folders_a_folder_and_a_list(root: Path) -> None:
    both = {"code": root / "code", "web": root / "web"}
    assert find_folders(str(root), None) == both
    assert find_folders(str(root / "web"), None) == {"web": root / "web"}
    assert list(find_folders(f"{root / 'web'}, {root / 'elsewhere'}", None)) == ["web", "held_out"]


def test_names_choose_sub_folders_in_their_order(root: Path) -> None:
    assert list(find_folders(str(root), "web,code")) == ["web", "code"]
    assert find_folders(None, str(root / "web")) == {"web": root / "web"}
    assert list(find_folders(f"{root},{root / 'elsewhere'}", "held_out, web")) == ["held_out", "web"]


@pytest.mark.parametrize(
    "given, datasets, cause, place",
    [
        ("{root}/nowhere", None, "there is no folder", "--tokenized_dir"),
        ("{root}/not-tokenised", None, "holds no tokenised folder", "--tokenized_dir"),
        ("{root}", "web,books", "there is no tokenised folder {root}/books", "--datasets"),
        ("{root}/web,{root}", None, "two sources are called web", "--tokenized_dir"),
    ],
)
def test_folders_that_cannot_be(root: Path, given: str, datasets: str | None, cause: str, place: str) -> None:
    with pytest.raises(ArgumentError) as error:
        find_folders(given.format(root=root), datasets)
    assert cause.format(root=root) in str(error.value) and place in str(error.value)


def test_each_source_has_a_weight(root: Path) -> None:
    with pytest.raises(ArgumentError, match="1 weights for 2 sources: code, web") as error:
        opened(DataArguments(tokenized_dir=str(root), weights="1"), make_tokenizer(), block_size=4, seed=9)
    assert error.value.place == "--weights"


def test_an_opened_corpus(root: Path) -> None:
    """70 tokens are 18 blocks of 4; web is 3 of 4 blocks as asked, not 6 of 7 as by size."""
    asked = DataArguments(
        tokenized_dir=str(root),
        datasets="web,code",
        weights="1.5, 0.5",
        validation_tokenized_dir=str(root / "elsewhere"),
        shuffle_buffer=5,
        logical_shards=4,
    )
    splits = opened(asked, make_tokenizer(), block_size=4, seed=9)
    train = splits.train
    assert (len(train), train.settings.seed, train.settings.shuffle_buffer) == (18, 9, 5)
    assert sum(train.segments(block)[0] == 0 for block in range(100)) == 75
    assert [splits.evaluation[block]["input_ids"].tolist() for block in range(2)] == [[70, 71, 72, 73], [74, 75, 76]]
    about = splits.about["train"]
    assert (about["rows"], about["tokens"], about["blocks"]) == (22, 70, 18)
    assert about["trained_tokens"] == 70 - 22 - 18
    assert about["sources"]["code"]["documents"] == 2
    assert splits.about["eval"]["tokens"] == 7


def test_a_virtual_epoch(root: Path) -> None:
    asked = DataArguments(tokenized_dir=str(root), num_samples_each_epoch=5)
    assert len(opened(asked, make_tokenizer(), block_size=4, seed=9).train) == 5


def test_documents_without_an_end_are_said(root: Path, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.eos_token_id == 0
    opened(DataArguments(tokenized_dir=str(root / "web")), tokenizer, block_size=4, seed=0)
    assert any("web: 20 of 20 documents looked at do not end with" in said for said in notices())
    write_corpus(tmp_path / "ended", [1])
    opened(DataArguments(tokenized_dir=str(tmp_path / "ended")), tokenizer, block_size=4, seed=0)
    assert not any("ended: " in said and "do not end" in said for said in notices())


def test_another_tokenizers_tokens_are_found_before_a_model_loads(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    write_corpus(tmp_path / "foreign", [5, 5], first_token=len(tokenizer) - 6)
    with pytest.raises(DataError, match=f"of document 1 is not in the vocabulary of {len(tokenizer)}"):
        opened(DataArguments(tokenized_dir=str(tmp_path)), tokenizer, block_size=4, seed=0)


def test_sources_and_shares_are_said(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("hftune")
    logger.propagate = True
    with caplog.at_level(logging.INFO, logger="hftune"):
        opened(DataArguments(tokenized_dir=str(root)), make_tokenizer(), block_size=4, seed=0)
    logger.propagate = False
    assert "web: 20 documents, 60 tokens, 85.7 % of the blocks" in caplog.text
    assert "an epoch is 18 blocks of 4 tokens" in caplog.text
