"""Grown tokenizers: old ids stay, old text is read as before, any text comes back, words of the domain are short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hftune.errors import ArgumentError
from hftune.models.vocabulary.growing import pieces_of
from hftune.tools.vocabulary.build import with_content
from hftune.tools.vocabulary.corpus import tokens_per_character
from hftune.tools.vocabulary.extend import extend_from_corpus, extend_from_tokens
from hftune.tools.vocabulary.kinds import is_whole, kind_of

from .conftest import CHINESE, ENGLISH, KINDS

COUNT = 60
LETTERS = st.one_of(st.sampled_from("患者治疗早期诊断 \n\tabehlp，。😀é"), st.characters(exclude_categories=["Cs"]))
TEXTS = st.text(LETTERS)
# SentencePiece spells a space as ▁, and takes the first of a text for the one that it puts there itself.
NO_SPACES = TEXTS.map(lambda text: text.replace("▁", "").strip(" "))


@pytest.fixture(scope="module")
def grown(tokenizers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each kind after it has learnt Chinese, saved and read again."""
    made = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp(kind)
        made[kind] = with_content(tokenizers[kind], extend_from_corpus(tokenizers[kind], CHINESE, COUNT), folder)
    return made


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
def test_old_ids_stay_and_new_ones_follow(tokenizers: dict, grown: dict, kind: str) -> None:
    old, new = tokenizers[kind].get_vocab(), grown[kind].get_vocab()
    assert all(new[token] == number for token, number in old.items())
    added = sorted(number for token, number in new.items() if token not in old)
    assert added == list(range(len(old), len(old) + len(added))) and 40 <= len(added) <= COUNT
    assert grown[kind].all_special_ids == tokenizers[kind].all_special_ids
    text = "医生<|end|>"
    assert (encode(grown[kind], text)[-1] == tokenizers[kind].eos_token_id) or kind == "bpe" or kind == "unigram"


@pytest.mark.parametrize("kind", KINDS)
def test_the_domain_is_short_and_the_rest_is_as_it_was(tokenizers: dict, grown: dict, kind: str) -> None:
    before, after = (tokens_per_character(one, CHINESE) for one in (tokenizers[kind], grown[kind]))
    assert after < before / 2
    for text in ENGLISH:
        assert encode(grown[kind], text) == encode(tokenizers[kind], text)


@pytest.mark.parametrize("kind", ["byte_bpe", "byte_bpe_beside", "bpe"])
def test_new_tokens_are_made_of_the_old_ones(tokenizers: dict, grown: dict, kind: str) -> None:
    """Take every new token apart into the pieces that the old tokenizer had for it: that is the old tokenisation."""
    old, new = tokenizers[kind], grown[kind]
    last = max(old.get_vocab().values())
    dropped = {"ñ", "Ą"}  # bytes that the old one did not have

    @settings(max_examples=150)
    @given(TEXTS)
    def holds(text: str) -> None:
        spelt = "".join(kind_of(new).words(text)) if "byte" in kind else ""
        if dropped & set(spelt):
            return
        apart: list[int] = []
        for number, token in zip(ids := encode(new, text), new.convert_ids_to_tokens(ids), strict=True):
            apart += pieces_of(token, old, new) if number > last else [number]
        assert apart == encode(old, text)

    holds()


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_comes_back(grown: dict, kind: str) -> None:
    @settings(max_examples=150)
    @given(TEXTS if "byte" in kind else NO_SPACES)
    def holds(text: str) -> None:
        assert grown[kind].decode(encode(grown[kind], text)) == text

    holds()
    for text in (*CHINESE, "患者\U0010ffff\x04😀治疗"):
        assert grown[kind].decode(encode(grown[kind], text)) == text


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe"])
def test_no_new_token_joins_half_characters(tokenizers: dict, grown: dict, kind: str) -> None:
    old, spelling = tokenizers[kind].get_vocab(), kind_of(grown[kind])
    added = [token for token in grown[kind].get_vocab() if token not in old]
    assert all(spelling.may_be_token(token) and spelling.characters(token) <= 16 for token in added)
    assert any(spelling.text_of(token) == "患者" for token in added)


@pytest.mark.parametrize(
    ("spelling", "whole"),
    [
        ("患者".encode(), True),
        ("患".encode()[:2], True),
        ("患".encode()[1:], True),
        ("😀".encode()[1:], True),
        ("患者".encode()[:4], False),
        ("患者".encode()[2:], False),
        (b"a" + "患".encode()[:1], False),
    ],
)
def test_what_is_whole(spelling: bytes, whole: bool) -> None:
    assert is_whole(spelling) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_another_vocabulary_become_one_token_each(tokenizers: dict, kind: str, tmp_path: Path) -> None:
    words = ["患者", "早期诊断", "治疗", "aspirin", "患者需要"]
    new = with_content(tokenizers[kind], extend_from_tokens(tokenizers[kind], words, 200), tmp_path)
    start = len(encode(new, "，")) - 1  # SentencePiece's kinds begin a text with its space
    for word in words[:3] if kind == "unigram" else words:
        assert len(encode(new, f"，{word}")) <= 2 + start, word
        assert new.decode(encode(new, word)) == word
    for text in ENGLISH[1:]:
        assert encode(new, text) == encode(tokenizers[kind], text)


def test_no_more_are_added_than_asked_for(tokenizers: dict) -> None:
    for kind in KINDS:
        for count in (0, 5, 30):
            content = extend_from_tokens(tokenizers[kind], ["患者", "早期诊断", "治疗"], count)
            sizes = [len(one["model"]["vocab"]) for one in (content, kind_of(tokenizers[kind]).content)]
            pinned = 2 if kind == "byte_bpe_beside" else 0
            assert sizes[0] - sizes[1] <= count + pinned


def test_classes_that_build_their_own_backend_keep_ids(tokenizers: dict, tmp_path: Path) -> None:
    """transformers 5 makes some tokenizers anew from vocabulary and merges, not from the file as it is."""
    from transformers import Qwen2Tokenizer

    content = kind_of(tokenizers["byte_bpe"]).content["model"]
    base = Qwen2Tokenizer(vocab=content["vocab"], merges=[tuple(pair) for pair in content["merges"]])
    base.add_tokens(["<|tool|>"], special_tokens=True)
    base.save_pretrained(tmp_path / "base")
    base = AutoTokenizer.from_pretrained(tmp_path / "base")
    new = with_content(base, extend_from_corpus(base, CHINESE, COUNT), tmp_path / "new")
    assert type(new) is type(base) and len(new) == len(base) + COUNT
    assert encode(new, "<|tool|>") == encode(base, "<|tool|>")
    assert new.decode(encode(new, "患者 a<|tool|>")) == "患者 a<|tool|>"


def test_wordpiece_is_refused(tokenizers: dict) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    wordpiece = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")))
    with pytest.raises(ArgumentError, match="WordPiece"):
        extend_from_corpus(wordpiece, CHINESE, 5)
    assert json.loads(wordpiece.backend_tokenizer.to_str())["model"]["type"] == "WordPiece"
