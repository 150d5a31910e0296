"""Tokenizers from nothing: SentencePiece's own answers, and byte-level BPE that takes any text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.errors import ArgumentError
from hftune.tools.vocabulary.domain import domain_tokens
from hftune.tools.vocabulary.train import from_sentencepiece, read_sentencepiece, train_byte_bpe, train_sentencepiece

from .conftest import CHINESE, ENGLISH

# What SentencePiece itself does with several spaces at the ends of a text is its own affair.
TEXTS = st.text(st.sampled_from("患者治疗诊断 abehlptin，。😀é12")).map(lambda text: text.strip(" "))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_says_the_same(kind: str, tmp_path: Path) -> None:
    import sentencepiece

    file = tmp_path / "tokenizer.model"
    train_sentencepiece(ENGLISH * 3 + CHINESE, 360, ["<tool>"], kind, file)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    ours = from_sentencepiece(read_sentencepiece(file))
    assert len(ours) == theirs.vocab_size() == 360
    assert ours.encode("<tool>", add_special_tokens=False)[-1] == theirs.piece_to_id("<tool>")

    @settings(max_examples=150)
    @given(TEXTS)
    def holds(text: str) -> None:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == (theirs.encode(text) if text else [])
        assert ours.decode(ids) == text

    holds()
    # Its pieces as texts: the tokenizer, its file and its folder name the same words.
    words = domain_tokens(str(file))
    assert {"患", "疗"} < set(words) and "<tool>" not in words and not any("<0x" in word for word in words)
    ours.save_pretrained(tmp_path / "folder")
    assert domain_tokens(str(tmp_path / "folder")) == domain_tokens(str(tmp_path / "folder" / "tokenizer.json"))
    assert set(domain_tokens(str(tmp_path / "folder"))) == set(words)


def test_byte_level_takes_any_text() -> None:
    tokenizer = train_byte_bpe(ENGLISH + CHINESE, 340, ["<tool>"], 2)
    assert len(tokenizer) == 340 and tokenizer.eos_token == tokenizer.pad_token == "<|endoftext|>"
    text = "\x00患者 12345\U0010ffff  é<tool>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("患者")) < 6


def test_more_pieces_than_the_corpus_has(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="set it to a value"):
        train_sentencepiece(ENGLISH, 5000, [], "unigram", tmp_path / "x.model")


def test_lists_of_words(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("患者 120 n\n\n治疗 80\n", encoding="utf-8")
    assert domain_tokens(str(tmp_path / "words.txt")) == ["患者", "治疗"]
    for name, content in (("words.txt", b""), ("words.txt", b"\xff"), ("t.json", b"{"), ("t.json", b"[]")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArgumentError, match="--domain_tokenizer"):
            domain_tokens(str(tmp_path / name))
    (tmp_path / "t.model").write_bytes(b"no model")
    with pytest.raises(ArgumentError, match="no SentencePiece model"):
        domain_tokens(str(tmp_path / "t.model"))
    with pytest.raises(ArgumentError, match="--domain_tokenizer"):
        domain_tokens(str(tmp_path / "nothing"))
