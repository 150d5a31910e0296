"""Tokens that a user names: where they come from, and that each is read and written as it is spelt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hftune.arguments.model import GrowthArguments
from hftune.errors import ArgumentError
from hftune.models.vocabulary import add_named_tokens, named_tokens


def test_lists_and_files(tmp_path: Path) -> None:
    assert named_tokens(None, "--f") == []
    assert named_tokens("<a>,<b>,<a>", "--f") == ["<a>", "<b>"]
    (tmp_path / "tokens.txt").write_text("<a>\n\n心肌 梗死\n a,b\n", encoding="utf-8")
    assert named_tokens(str(tmp_path / "tokens.txt"), "--f") == ["<a>", "心肌 梗死", " a,b"]
    (tmp_path / "tokens.json").write_text(json.dumps(["<a>", "x\ny"]))
    assert named_tokens(str(tmp_path / "tokens.json"), "--f") == ["<a>", "x\ny"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"\n \n"])
def test_files_that_hold_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokens.txt").write_bytes(content)
    with pytest.raises(ArgumentError, match="--f"):
        named_tokens(str(tmp_path / "tokens.txt"), "--f")


def test_each_is_read_and_written_as_it_is_spelt(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    before = tokenizer.encode("What is 2 plus 3?")
    add_named_tokens(tokenizer, GrowthArguments(add_tokens="<ref>,心肌梗死", add_special_tokens="<tool>"))
    text = "a<ref>b 心肌梗死<tool> c"
    ids = tokenizer.encode(text)
    assert [token for token in ids if token >= 281] == [281, 282, 283]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<ref>b 心肌梗死 c"
    assert tokenizer.encode("What is 2 plus 3?") == before


@pytest.mark.parametrize("tokens", ["é", "ab,abc"])
def test_one_that_would_not_come_back_is_refused(tiny_model: Path, tokens: str) -> None:
    # "é" is the spelling of a byte for a byte-level decoder. "abc" is found whole although "ab" is a token: no fault.
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    if tokens == "é":
        with pytest.raises(ArgumentError, match="use a tokenizer that has it"):
            add_named_tokens(tokenizer, GrowthArguments(add_tokens=tokens))
    else:
        add_named_tokens(tokenizer, GrowthArguments(add_tokens=tokens))
        assert tokenizer.decode(tokenizer.encode("ab abc")) == "ab abc"
