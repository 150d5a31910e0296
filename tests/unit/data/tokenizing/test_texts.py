"""Texts to token ids: whole documents, pieces of them, and their ends."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hftune.arguments.entry import parse_arguments
from hftune.data.counts import Counts
from hftune.data.encode import TextEncoder
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
    rows = [row(text="x"), row(text="abcde")]
    dataset, counts = tokenize_texts(rows, chatml, block_size=4, append_eos=False)
    assert [chatml.decode(ids) for ids in dataset["input_ids"]] == ["abcd"]
    assert (counts.used, counts.truncated, counts.dropped) == (1, 1, {"fewer than 2 tokens": 1})
    with pytest.raises(DataError, match="all 1 records were dropped") as problem:
        tokenize_texts(rows[:1], chatml, block_size=4, append_eos=False)
    assert problem.value.place == "--train_file_dir"


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


@pytest.mark.parametrize(("ids", "ended"), [([5, 6], [5, 6, 0]), ([5, 0], [5, 0]), ([0, 5], [0, 5, 0]), ([], [0])])
def test_an_end_once_and_at_the_end(chatml: PreTrainedTokenizerFast, ids: list[int], ended: list[int]) -> None:
    encoder = TextEncoder(chatml)
    eos = encoder.eos
    found = encoder._ended([eos if one == 0 else one for one in ids])
    assert found.tolist() == [eos if one == 0 else one for one in ended]
    without = TextEncoder(chatml, append_eos=False)
    assert without.eos is None and without._ended([5, 6]).tolist() == [5, 6]


@pytest.mark.parametrize(
    ("size", "length", "blocks", "truncated"),
    [
        (None, 0, [], 0),
        (None, 5, [5], 0),
        (None, 1, [], 0),
        (2, 5, [2, 2], 1),
        (3, 5, [3, 2], 0),
        (4, 1, [], 0),
        (5, 5, [5], 0),
    ],
)
def test_blocks_by_hand(
    chatml: PreTrainedTokenizerFast, size: int | None, length: int, blocks: list[int], truncated: int
) -> None:
    """In order; a lone token at the end is left out, which is counted where something else stays."""
    counts = Counts(truncated=7)
    found = TextEncoder(chatml, block_size=size)._blocks(np.arange(length), counts)
    assert [len(block) for block in found] == blocks and counts.truncated == 7 + truncated
    assert [int(one) for block in found for one in block] == list(range(sum(blocks)))


def test_what_the_flags_and_the_fingerprint_say(chatml: PreTrainedTokenizerFast) -> None:
    *_, args = parse_arguments("pt", ["--output_dir", "o", "--block_size", "9", "--borders_in_text", "error"])
    encoder = TextEncoder.from_arguments(chatml, args)
    assert encoder.settings() == {"encoder": "text", "piece": 9, "append_eos": True, "borders_in_text": "error"}
    assert encoder.without_limit().settings() == encoder.settings() | {"piece": None}
    assert TextEncoder(chatml).settings() == encoder.settings() | {"piece": None, "borders_in_text": "split"}
    assert hasattr(args, TextEncoder.row_length) and encoder.schema.names == [
        "input_ids",
        "labels",
        "length",
        "trained",
    ]
    other = TextEncoder(chatml, block_size=9, append_eos=False)
    assert other.without_limit().settings() == {
        "encoder": "text", "piece": None, "append_eos": False, "borders_in_text": "split"
    }  # fmt: skip


def test_documents_begin_as_the_tokenizer_begins_texts() -> None:
    tokenizer = make_tokenizer()
    first = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, first)]
    )
    made = TextEncoder(tokenizer).encode(["ab", "c"], Counts())
    assert [tokenizer.decode(ids) for ids in made["input_ids"]] == [f"<bos>ab{EOS}", f"<bos>c{EOS}"]


def test_where_a_refused_text_is(chatml: PreTrainedTokenizerFast) -> None:
    encoder = TextEncoder(chatml, borders_in_text="error")
    with pytest.raises(DataError) as caught:
        encoder.parse(row(7, text="a<|im_end|>b"))
    assert str(caught.value.place).endswith(":7")
    assert TextEncoder(chatml, borders_in_text="allow").parse(row(text=f"a{EOS}")) == f"a{EOS}"
    assert TextEncoder(chatml, append_eos=False).parse(row(text="a")) == "a"
