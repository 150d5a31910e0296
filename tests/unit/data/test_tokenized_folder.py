"""Folders of token ids: opened by who would have made the same, refused by all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.data.encode import ChatEncoder, TextEncoder
from hftune.data.sources import TokenizedSource
from hftune.data.tokenized_folder import check_index, held_out_within, load_tokenised, save_tokenised, settings_of
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, row, tokenise_rows, user


@pytest.fixture
def folder(chatml: PreTrainedTokenizerFast, tmp_path: Path) -> Path:
    """Two training records and a held-out one."""
    encoder = ChatEncoder(chatml, max_length=64)
    parts = {}
    for name, texts in (("train", "ab"), ("eval", "c")):
        rows = [row(messages=[user(text), assistant(text * 3)]) for text in texts]
        parts[name] = TokenizedSource(*tokenise_rows(rows, encoder), ["a.jsonl"], f"key of {name}")
    save_tokenised(tmp_path, parts, {"train": encoder, "eval": encoder})
    return tmp_path


def test_what_was_saved_is_loaded(chatml: PreTrainedTokenizerFast, folder: Path) -> None:
    encoder = ChatEncoder(chatml, max_length=64)
    found = load_tokenised(folder, {"train": encoder, "eval": encoder})
    assert {name: len(part.dataset) for name, part in found.items()} == {"train": 2, "eval": 1}
    train = found["train"]
    assert (train.files, train.key, train.counts.used) == (["a.jsonl"], "key of train", 2)
    assert chatml.decode(train.dataset[1]["input_ids"]).endswith("bbb<|im_end|>\n")


def test_other_settings_and_tokenizers_are_refused(chatml: PreTrainedTokenizerFast, folder: Path) -> None:
    with pytest.raises(DataError, match=r"max_length 64 \(this run: 32\)"):
        check_index([str(folder)], ChatEncoder(chatml, max_length=32))
    with pytest.raises(DataError, match=r"encoder chat \(this run: text\)"):
        check_index([str(folder)], TextEncoder(chatml))
    check_index([str(folder), str(folder / "train")], ChatEncoder(chatml, max_length=64))


def test_which_encoder_made_it_is_written_down(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert settings_of(folder)["encoder"] == "chat"
    assert settings_of(tmp_path_factory.mktemp("empty")) == {}


def test_held_out_records_are_found(folder: Path, tmp_path: Path) -> None:
    assert held_out_within([str(folder), str(folder / "train")]) == str(folder)
    assert held_out_within([str(folder / "train")]) is None
    (tmp_path / "plain" / "eval").mkdir(parents=True)
    assert held_out_within([str(tmp_path / "plain")]) is None, "no folder of `hftune tokenize`"
