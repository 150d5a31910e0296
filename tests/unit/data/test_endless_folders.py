"""Folders and weights of the command line to the data of a run."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.arguments.data import DataArguments
from hftune.data.encode import TextEncoder
from hftune.data.endless import find_folders, open_tokenized
from hftune.errors import ArgumentError, DataError
from hftune.logging import notices
from tests.unit.data.corpora import write_corpus
from tests.unit.data.helpers import make_tokenizer


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
