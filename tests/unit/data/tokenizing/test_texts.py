"""Texts to token ids: whole documents, pieces of them, and their ends."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.errors import ArgumentError, DataError
from tests.unit.data.helpers import assistant, make_tokenizer, row, tokenize_texts, user

EOS = "<|endoftext|>"


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def test_documents_stay_whole_for_packing(chatml: PreTrainedTokenizerFast) -> None:
    texts = ["hello world", "你好", "x"]
    dataset, counts = tokenize_texts([row(text=text) for text in texts], chatml)
    assert dataset["input_ids"][:] == [ids_of(chatml, text + EOS) for text in texts]
    assert dataset["labels"][:] == dataset["input_ids"][:]
    total = sum(dataset["length"])
    assert (counts.rows, counts.used, counts.tokens, counts.trained_tokens) == (3, 3, total, total - 3)


def test_without_packing_each_document_is_cut_on_its_own(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(text="abcde"), row(text="xy")]
    dataset, counts = tokenize_texts(rows, chatml, block_size=4)
    assert [chatml.decode(ids) for ids in dataset["input_ids"]] == ["abcd", "e" + EOS, "xy" + EOS]
    assert (counts.used, counts.truncated, counts.tokens, counts.trained_tokens) == (2, 0, 9, 6)


def test_lone_tokens_are_counted(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(text="abcde"), row(text="x")]
    dataset, counts = tokenize_texts(rows, chatml, block_size=4, append_eos=False)
    assert [chatml.decode(ids) for ids in dataset["input_ids"]] == ["abcd"]
    assert (counts.used, counts.truncated, counts.dropped) == (1, 1, {"fewer than 2 tokens": 1})
    with pytest.raises(DataError, match="all 1 records were dropped"):
        tokenize_texts(rows[1:], chatml, block_size=4, append_eos=False)


def test_eos_is_not_doubled(chatml: PreTrainedTokenizerFast) -> None:
    dataset, _ = tokenize_texts([row(text="ab" + EOS)], chatml, block_size=9)
    assert chatml.decode(dataset[0]["input_ids"]) == "ab" + EOS


def test_texts_are_refused(chatml: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ArgumentError, match="--block_size is 1"):
        tokenize_texts([row(text="a")], chatml, block_size=1)
    with pytest.raises(DataError, match=r"run_sft\.py"):
        tokenize_texts([row(messages=[user("a"), assistant("b")])], chatml, block_size=8)
    without = make_tokenizer()
    without.eos_token = None
    with pytest.raises(DataError, match="no EOS"):
        tokenize_texts([row(text="a")], without, block_size=8)
