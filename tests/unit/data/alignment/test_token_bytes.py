"""Tokens write back every text, byte for byte; what cannot is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hftune.data.alignment.token_bytes import END, end_of_answer, joined, token_bytes
from hftune.errors import ArgumentError
from tests.unit.data.templates.turn_token_families import family_tokenizer

KINDS = {kind: family_tokenizer("chatml", kind) for kind in ("bytes", "pieces")}
WRITTEN = {kind: token_bytes(tokenizer, "--model") for kind, tokenizer in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁<"), max_size=30))
def test_every_text_is_written_back(kind: str, text: str) -> None:
    ids = KINDS[kind].backend_tokenizer.encode(text, add_special_tokens=False).ids
    space = b" " if kind == "pieces" and text else b""
    assert joined(WRITTEN[kind], ids) == space + text.encode()


def test_pieces_by_hand() -> None:
    tokenizer, written = KINDS["pieces"], WRITTEN["pieces"]
    of = {piece: written[tokenizer.convert_tokens_to_ids(piece)] for piece in ("▁hello", "<0xF0>", "<think>")}
    assert of == {"▁hello": b" hello", "<0xF0>": b"\xf0", "<think>": b"<think>"}
    level, raw = KINDS["bytes"], WRITTEN["bytes"]
    assert raw[level.convert_tokens_to_ids("Ġ")] == b" " and raw[level.convert_tokens_to_ids("Ċ")] == b"\n"


@pytest.mark.parametrize(
    ("family", "ends"),
    [("chatml", "<|im_end|>"), ("gemma", "<end_of_turn>"), ("mistral", "</s>"), ("llama3", "<|eot_id|>")],
)
def test_what_ends_an_answer(family: str, ends: str) -> None:
    tokenizer = family_tokenizer(family)
    index = tokenizer.convert_tokens_to_ids(ends)
    assert end_of_answer(tokenizer) == index and token_bytes(tokenizer, "--model")[index] == END


def test_without_a_template_it_is_eos() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=KINDS["bytes"].backend_tokenizer, eos_token="<|endoftext|>")
    assert end_of_answer(tokenizer) == tokenizer.eos_token_id


def _made(model: models.Model, decoder: decoders.Decoder | None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder:
        backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (_made(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"), decoders.WordPiece()), "WordPiece"),
        (_made(models.BPE({"a": 0}, []), None), "how it writes spaces"),
        (family_tokenizer("chatml", "unigram"), "does not keep every text"),
    ],
)
def test_others_are_refused(tokenizer: PreTrainedTokenizerFast, why: str) -> None:
    with pytest.raises(ArgumentError, match=why) as found:
        token_bytes(tokenizer, "--teacher_model_name_or_path")
    assert found.value.place == "--teacher_model_name_or_path" and found.value.fix
