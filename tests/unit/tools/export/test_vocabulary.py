"""How llama.cpp is told to cut text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, trainers

from hftune.errors import UserError
from hftune.tools.export.vocabulary import CUTS, cut_of, read_vocabulary

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPLIT_BYTES = BYTES | {"use_regex": False}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


LLAMA3 = next(pattern for pattern, name in CUTS.items() if name == "llama-bpe")
QWEN2 = next(pattern for pattern, name in CUTS.items() if name == "qwen2")


@pytest.mark.parametrize(
    "steps, model, name",
    [
        (BYTES, {}, "gpt-2"),
        (sequence({"type": "Digits", "individual_digits": True}, BYTES), {}, "smollm"),
        (sequence(split(LLAMA3), SPLIT_BYTES), {"ignore_merges": True}, "llama-bpe"),
        (sequence(split(LLAMA3), SPLIT_BYTES), {"ignore_merges": False}, "dbrx"),
        (sequence(split(QWEN2), SPLIT_BYTES), {}, "qwen2"),
    ],
)
def test_known_cuts(steps: dict[str, Any], model: dict[str, Any], name: str) -> None:
    assert cut_of({"pre_tokenizer": steps, "model": model}) == name


def test_patterns_are_those_of_the_tokenizers() -> None:
    """As `tokenizer.json` of Qwen2 and Llama 3 spell them."""
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
    rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    assert words + r"|\p{N}" + rest == QWEN2
    assert words + r"|\p{N}{1,3}" + rest == LLAMA3


@pytest.mark.parametrize(
    "steps",
    [
        None,
        {"type": "Whitespace"},
        BYTES | {"add_prefix_space": True},
        sequence(split("[a-z]+"), SPLIT_BYTES),
        sequence({"type": "Digits", "individual_digits": False}, BYTES),
    ],
)
def test_unknown_cuts_are_refused(steps: dict[str, Any] | None) -> None:
    with pytest.raises(UserError, match=r"convert_hf_to_gguf\.py"):
        cut_of({"pre_tokenizer": steps, "model": {}})


def test_pieces_with_byte_fallback(tmp_path: Path) -> None:
    """As Llama 2, Mistral and Gemma have them: earlier merges score higher, bytes and specials have their kinds."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(["the cat sat on the mat and the hat"] * 20, trainer)
    content = json.loads(backend.to_str())
    # What Llama's tokenizers have beside the bytes: those are no added tokens.
    content["added_tokens"] = content["added_tokens"][:3]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    rows = len(content["model"]["vocab"]) + 5
    found = read_vocabulary(tmp_path, rows)
    assert found.model == "llama" and found.space_prefix and len(found.tokens) == rows
    kinds = dict(zip(found.tokens, found.kinds, strict=True))
    assert kinds["<unk>"] == gguf.TokenType.UNKNOWN and kinds["</s>"] == gguf.TokenType.CONTROL
    assert kinds["<0x0A>"] == gguf.TokenType.BYTE and kinds["a"] == gguf.TokenType.NORMAL
    assert found.kinds[-1] == gguf.TokenType.UNUSED
    scores = dict(zip(found.tokens, found.scores or [], strict=True))
    merges = ["".join(pair) for pair in content["model"]["merges"]]
    assert [scores[token] for token in merges] == sorted((scores[token] for token in merges), reverse=True)


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    content = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 7}, "merges": []}, "pre_tokenizer": BYTES}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="highest token is 7"):
        read_vocabulary(tmp_path, 7)


def test_unigram_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": []}}))
    with pytest.raises(UserError, match="Unigram"):
        read_vocabulary(tmp_path, 7)
