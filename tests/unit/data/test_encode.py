"""Conversations and texts to token ids: masks, truncation, counts; and the first tokens of long texts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from hftune.arguments.entry import parse_arguments
from hftune.constants import IGNORE_INDEX
from hftune.data.counts import Counts
from hftune.data.encode import ChatEncoder, PrefixEncoder, TextEncoder
from hftune.data.encoder import write_tokenised
from hftune.data.files import Row
from hftune.data.turns import Span, SpannedText
from hftune.errors import ArgumentError, DataError
from tests.unit.data.helpers import (
    ParsedChunk,
    assistant,
    call,
    make_tokenizer,
    row,
    template,
    tokenize_chat,
    tokenize_texts,
    user,
)
from tests.unit.data.tokenizers import TEXTS, TOKENIZERS

EOS = "<|endoftext|>"


def pieces(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    """Each token as text; tokens that hold a part of a character are joined by the caller."""
    return [tokenizer.decode([token]) for token in ids]


def trained(tokenizer: PreTrainedTokenizerFast, example: dict[str, Any]) -> str:
    """The text of all trained tokens; each label must be the token itself."""
    pairs = list(zip(example["input_ids"], example["labels"], strict=True))
    assert all(label in (token, IGNORE_INDEX) for token, label in pairs)
    return tokenizer.decode([label for _, label in pairs if label != IGNORE_INDEX])


# --- conversations ----------------------------------------------------------------------------------------------


def test_mask_token_by_token(chatml: PreTrainedTokenizerFast) -> None:
    dataset, counts = tokenize_chat([row(messages=[user("hi"), assistant("Thank you.")])], chatml, max_length=99)
    example = dataset[0]
    shown = [
        (piece, label != IGNORE_INDEX)
        for piece, label in zip(pieces(chatml, example["input_ids"]), example["labels"], strict=True)
    ]
    assert shown == [
        ("<|im_start|>", False), ("user", False), ("\n", False), ("h", False), ("i", False), ("<|im_end|>", False),
        ("\n", False), ("<|im_start|>", False), ("assistant", False), ("\n", False),
        ("Thank", True), (" you", True), (".", True), ("<|im_end|>", True), ("\n", False),
    ]  # fmt: skip
    assert counts.to_dict() == {
        "rows": 1, "used": 1, "dropped": {}, "truncated": 0, "tokens": 15, "trained_tokens": 4, "examples": {},
    }  # fmt: skip


TURNS = [user("天气?"), assistant("好🙂\n\n!"), user("b?"), assistant(" ok ")]


@pytest.mark.parametrize("trim_offsets", [False, True])
@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "phi3", "gemma"])
def test_all_of_each_turn_and_nothing_else_is_trained(name: str, trim_offsets: bool) -> None:
    """Also with tokenizers that report white space with a range of zero width (`trim_offsets`)."""
    tokenizer = make_tokenizer(template(name), trim_offsets=trim_offsets)
    dataset, _ = tokenize_chat([row(messages=TURNS)], tokenizer, max_length=999)
    ends = {"qwen2_5": "<|im_end|>", "llama3": "<|eot_id|>", "phi3": "<|end|>", "gemma": "<end_of_turn>"}
    last = " ok " if name in ("qwen2_5", "phi3") else "ok"
    closing = "\n" + EOS if name == "phi3" else ""
    assert trained(tokenizer, dataset[0]) == f"好🙂\n\n!{ends[name]}{last}{ends[name]}{closing}"


@pytest.mark.parametrize(
    ("settings", "expected"), [({"last_turn_only": True}, " ok <|im_end|>"), ({"train_on_inputs": True}, None)]
)
def test_what_is_trained(chatml: PreTrainedTokenizerFast, settings: dict[str, bool], expected: str | None) -> None:
    dataset, counts = tokenize_chat([row(messages=TURNS)], chatml, max_length=999, **settings)
    example = dataset[0]
    if expected is None:
        assert example["labels"] == example["input_ids"]
        # The first token is predicted by nothing.
        assert counts.trained_tokens == len(example["input_ids"]) - 1
    else:
        assert trained(chatml, example) == expected


def test_truncation_keeps_the_start_and_adds_nothing(chatml: PreTrainedTokenizerFast) -> None:
    whole = tokenize_chat([row(messages=TURNS)], chatml, max_length=999)[0][0]
    for length in range(2, len(whole["input_ids"]) + 1):
        if all(label == IGNORE_INDEX for label in whole["labels"][1:length]):
            continue
        dataset, counts = tokenize_chat([row(messages=TURNS)], chatml, max_length=length)
        assert dataset[0]["input_ids"] == whole["input_ids"][:length]
        assert dataset[0]["labels"] == whole["labels"][:length]
        assert counts.truncated == int(length < len(whole["input_ids"]))
        assert counts.tokens == length


def test_records_without_a_trained_token_are_dropped(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(1, messages=[user("a"), assistant("b")]), row(2, messages=[user("hello " * 30), assistant("b")])]
    dataset, counts = tokenize_chat(rows, chatml, max_length=20)
    assert (len(dataset), counts.rows, counts.used, counts.truncated) == (1, 2, 1, 0)
    assert counts.dropped == {"no trained token within max_length": 1}
    with pytest.raises(DataError, match="all 1 records were dropped: 1 x no trained token") as caught:
        tokenize_chat(rows[1:], chatml, max_length=20)
    assert caught.value.place == "--max_length"


@pytest.mark.parametrize(
    ("rows", "name", "words"),
    [
        ([row(1, messages=TURNS), row(9, text="t")], "qwen2_5", ["run_pt.py"]),
        ([row(9, messages=[{"role": "system", "content": "S"}, *TURNS])], "gemma", ["System role not supported"]),
        ([row(9, messages=[user("a"), call("f")])], "llama3", ["drops the function call"]),
    ],
)
def test_errors_name_the_record(rows: list[Row], name: str, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        tokenize_chat(rows, make_tokenizer(template(name)), max_length=99)
    assert caught.value.place == "data.jsonl:9"
    assert all(word in str(caught.value) for word in words)


def test_settings_are_refused(chatml: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ArgumentError, match="--train_on_inputs, --train_on_last_turn"):
        tokenize_chat([row(messages=TURNS)], chatml, max_length=9, train_on_inputs=True, last_turn_only=True)
    with pytest.raises(DataError, match="no chat template"):
        tokenize_chat([row(messages=TURNS)], make_tokenizer(None), max_length=9)


def test_a_row_says_whether_its_record_begins_with_it(tmp_path: Path) -> None:
    turn = [user("a"), assistant("b", reasoning_content="hm")]
    long = [user("a " * 40), assistant("b", reasoning_content="hm")]
    # Two rows of a record; none of another, which is cut before its answers; a single one.
    records = [row(messages=[*turn, *turn]), row(messages=[*long, *turn]), row(messages=turn)]
    encoder = ChatEncoder(make_tokenizer(template("qwen3")), max_length=60)
    counts = write_tokenised([ParsedChunk(records)], encoder, tmp_path)
    dataset = Dataset.load_from_disk(str(tmp_path))
    assert counts.used == 2 and dataset["begins"][:] == [True, False, True]


def test_a_row_without_a_target_does_not_take_the_next_ones_with_it(chatml: PreTrainedTokenizerFast) -> None:
    """Of a record's rows, and of records: what is left begins its record, and is counted."""
    encoder, counts = ChatEncoder(chatml, max_length=4), Counts()
    nothing, something = SpannedText("abcdef", []), SpannedText("xyzabc", [Span(1, 3)])
    late = SpannedText("abcdefgh", [Span(5, 8)])
    made = encoder.encode([[late], [nothing, something], [something, late]], counts)
    assert [chatml.decode(ids) for ids in made["input_ids"]] == ["xyza", "xyza"]
    assert made["begins"] == [True, True] and made["length"] == [4, 4] and made["trained"] == [2, 2]
    assert (counts.used, counts.truncated, counts.tokens, counts.trained_tokens) == (2, 2, 8, 4)
    assert counts.dropped == {"no trained token within max_length": 1}
    assert [label != IGNORE_INDEX for label in made["labels"][0]] == [False, True, True, False]
    assert {made[name][0].dtype for name in ("input_ids", "labels")} == {np.dtype(np.int32)}


def test_a_record_is_truncated_if_one_of_its_rows_is(chatml: PreTrainedTokenizerFast) -> None:
    encoder = ChatEncoder(chatml, max_length=4)
    long, short = SpannedText("xyzabc", [Span(1, 3)]), SpannedText("xyza", [Span(1, 3)])
    for record, truncated in (([long, short], 1), ([short, long], 1), ([short, short], 0), ([long, long, short], 1)):
        counts = Counts()
        assert encoder.encode([record], counts)["begins"] == [True, *[False] * (len(record) - 1)]
        assert (counts.truncated, counts.rewritten, counts.rewritten_rows) == (truncated, 1, len(record))


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_a_weight_wants_its_flag(chatml: PreTrainedTokenizerFast, weight: float) -> None:
    record = row(3, messages=[user("a"), assistant("b", weight=weight), user("c"), assistant("d")])
    with pytest.raises(DataError, match=f"a turn has the weight {weight}") as problem:
        ChatEncoder(chatml, max_length=None).parse(record)
    assert str(problem.value.place).endswith(":3")
    (found,) = ChatEncoder(chatml, max_length=None, turn_weights=True).parse(record)
    assert [span.weight for span in found.spans] == [weight, 1.0]


def test_weights_of_the_tokens_of_spans(chatml: PreTrainedTokenizerFast) -> None:
    encoder = ChatEncoder(chatml, max_length=None, turn_weights=True)
    text = SpannedText("abcdef", [Span(1, 3, 0.5), Span(4, 5, 2.0)])
    made = encoder.encode([[text]], Counts())
    assert made["loss_weights"][0].tolist() == [0.0, 0.5, 0.5, 0.0, 2.0, 0.0]
    assert made["loss_weights"][0].dtype == np.float32


def test_each_setting_is_in_the_fingerprint(chatml: PreTrainedTokenizerFast) -> None:
    """Under names that folders of older versions have; what is cached with other settings is not taken."""
    *_, args = parse_arguments("sft", ["--output_dir", "o", "--max_length", "9", "--turn_weights", "True"])
    plain = ChatEncoder.from_arguments(chatml, args).settings()
    assert plain == {
        "encoder": "chat", "max_length": 9, "train_on_inputs": False, "last_turn_only": False, "turn_weights": True,
        "borders_in_text": "split", "empty_thoughts": "mask", "rewritten_turns": "split",
    }  # fmt: skip
    assert ChatEncoder(chatml, max_length=9).settings() == plain | {"turn_weights": False}, "off, if nobody asks"
    assert ChatEncoder.row_length == "max_length" and hasattr(args, ChatEncoder.row_length)
    for flag, value, name in (
        ("--train_on_inputs", "True", "train_on_inputs"),
        ("--train_on_last_turn", "True", "last_turn_only"),
        ("--turn_weights", "False", "turn_weights"),
        ("--borders_in_text", "allow", "borders_in_text"),
        ("--empty_thoughts", "train", "empty_thoughts"),
        ("--rewritten_turns", "keep", "rewritten_turns"),
        ("--max_length", "8", "max_length"),
    ):
        given = ["--output_dir", "o", "--max_length", "9", "--turn_weights", "True", flag, value]
        other = ChatEncoder.from_arguments(chatml, parse_arguments("sft", given)[-1])
        assert {key for key, one in other.settings().items() if one != plain[key]} == {name}
        assert other.without_limit().settings() == other.settings() | {"max_length": None}


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
    rows = [row(text=EOS), row(text="abcd")]
    dataset, counts = tokenize_texts(rows, chatml, block_size=4)
    assert [chatml.decode(ids) for ids in dataset["input_ids"]] == ["abcd"]
    assert (counts.used, counts.truncated, counts.dropped) == (1, 1, {"fewer than 2 tokens": 1})
    with pytest.raises(DataError, match="all 1 records were dropped") as problem:
        tokenize_texts(rows[:1], chatml, block_size=4)
    assert problem.value.place == "--train_file_dir"


def test_texts_are_refused(chatml: PreTrainedTokenizerFast) -> None:
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


@pytest.mark.parametrize(
    ("size", "length", "blocks", "truncated"),
    [(None, 0, [], 0), (None, 5, [5], 0), (2, 5, [2, 2], 1), (3, 5, [3, 2], 0), (5, 5, [5], 0)],
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
    assert encoder.settings() == {"encoder": "text", "piece": 9, "borders_in_text": "error"}
    assert encoder.without_limit().settings() == encoder.settings() | {"piece": None}
    assert TextEncoder(chatml).settings() == encoder.settings() | {"piece": None, "borders_in_text": "split"}
    assert hasattr(args, TextEncoder.row_length) and encoder.schema.names == [
        "input_ids",
        "labels",
        "length",
        "trained",
    ]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), length=st.integers(1, 40))
def test_first_tokens_are_those_of_the_whole_text(name: str, texts: list[str], length: int) -> None:
    tokenizer = TOKENIZERS[name]
    encoder = PrefixEncoder(tokenizer, length)
    for text, encoding in zip(texts, encoder(texts), strict=True):
        whole = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        assert encoding.ids[:length] == whole.ids[:length]
        assert len(encoding) > length or encoding.ids == whole.ids


@pytest.mark.parametrize("length", [None, 3])
def test_a_tokenizer_that_begins_texts_by_itself_begins_none_here(length: int | None) -> None:
    """A template has written the special tokens of a text."""
    tokenizer = copy.deepcopy(TOKENIZERS["bytes"])
    backend = tokenizer.backend_tokenizer
    first = backend.id_to_token(0)
    backend.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)])
    assert backend.encode("ab").ids[0] == 0 and len(backend.encode("ab")) == 3
    (found,) = PrefixEncoder(tokenizer, length)(["ab"])
    assert found.ids == backend.encode("ab", add_special_tokens=False).ids


def test_a_guess_that_was_too_short_costs_no_token() -> None:
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 40)
    encoder.density = 0.01
    text = "hello world, how are you? " * 20
    (found,) = encoder([text])
    assert found.ids == TOKENIZERS["bytes"].backend_tokenizer.encode(text, add_special_tokens=False).ids
    assert encoder.density > 0.1


def test_guesses_by_hand() -> None:
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 40)
    # A quarter more than 40 tokens of 4 bytes, and 16 characters; short texts whole.
    assert [encoder._reach("x" * length) for length in (39, 40, 215, 216, 999)] == [39, 40, 215, 216, 216]
    assert encoder._reach("鬱" * 999) == int(1.25 * 40 * 4 / 3) + 16, "of three bytes each"


def test_what_a_cut_may_have_divided() -> None:
    """Two words are left between what is kept and the cut; near a letter that opens an added token, its length more."""
    encoder = PrefixEncoder(TOKENIZERS["bytes"], 2)
    added = TOKENIZERS["bytes"].get_added_vocab()
    assert encoder.longest == max(map(len, added)) and encoder.openings == {token[0] for token in added} == {"<"}
    text = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    final = [end for end in range(len(text)) if encoder._is_final(encoder._encode([text[:end]])[0], text[:end])]
    assert final == list(range(final[0], len(text))) and final[0] == 7
    opened = "a b c d e f <"
    assert not encoder._is_final(encoder._encode([opened])[0], opened)
    assert encoder._is_final(encoder._encode([opened.replace("<", ">")])[0], opened.replace("<", ">"))
