"""Kinds of tokenizers that can grow, and how each spells what it knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from hftune.errors import ArgumentError

SPACE = "▁"
# A word with the spaces before it, one without, or a run of newlines, which no piece crosses.
_WORDS_OF_SENTENCEPIECE = re.compile(f"{SPACE}+[^{SPACE}\n]*|[^{SPACE}\n]+|\n+")
# RFC 3629: 0xC0 and 0xC1 would spell ASCII in two bytes, 0xF5 and above lie beyond U+10FFFF.
_UTF8_BYTES = [byte for byte in range(256) if byte not in (0xC0, 0xC1) and byte < 0xF5]
"""Bytes that some UTF-8 text has."""


@lru_cache(maxsize=1)
def bytes_of_letters() -> dict[str, int]:
    """GPT-2's alphabet: the letter that stands for each byte. Printable bytes stand for themselves, others follow."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    # tokenizers lists the letters, and not which byte each stands for.
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    return letters


def is_whole(spelling: bytes) -> bool:
    """Whether bytes are text, or a part of one character: no token begins in one character and ends in the next.

    Such a token could not be shown on its own, and the characters that it joins seldom belong together.
    """
    try:
        spelling.decode()
        return True
    except UnicodeDecodeError:
        lead = spelling[0]
        rest = spelling[1:] if lead >= 0xC0 else spelling
        # The lead byte says how many follow: 110xxxxx one, 1110xxxx two, 11110xxx three.
        needed = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
        # Without its lead, at most three bytes can belong to one character.
        return all(0x80 <= byte < 0xC0 for byte in rest) and len(spelling) < (needed if lead >= 0xC0 else 4)


@dataclass
class Kind:
    """A tokenizer as its `tokenizer.json` describes it.

    `name` is "byte_bpe" (GPT-2's: text as bytes), "bpe" (Llama's: characters, bytes for those that are unknown) or
    "unigram" (SentencePiece's, with a score a piece).
    """

    name: str
    content: dict[str, Any]
    backend: Tokenizer

    @property
    def model(self) -> dict[str, Any]:
        """The part of the description that holds vocabulary and merges."""
        return self.content["model"]

    def words(self, text: str) -> Iterator[str]:
        """The words of a text, which no token crosses, spelt as in the vocabulary (spaces and bytes as letters).

        SentencePiece's kinds do not split texts before tokenising; here their words begin with their space.
        """
        if self.backend.normalizer is not None:
            text = self.backend.normalizer.normalize_str(text)
        split = self.backend.pre_tokenizer
        parts = [part for part, _ in split.pre_tokenize_str(text)] if split is not None else [text]
        for part in parts:
            if self.name == "byte_bpe":
                yield part
            else:
                yield from _WORDS_OF_SENTENCEPIECE.findall(part)

    def alphabet(self, words: Iterable[str]) -> list[str]:
        """Letters that words need: all bytes of UTF-8, or the characters of the words, the most frequent first."""
        if self.name == "byte_bpe":
            return [letter for letter, byte in sorted(bytes_of_letters().items(), key=_byte) if byte in _UTF8_BYTES]
        counts: dict[str, int] = {}
        for word in words:
            for letter in word:
                counts[letter] = counts.get(letter, 0) + 1
        # A character that occurs once is more likely a slip; byte fallback spells it.
        return sorted((one for one, times in counts.items() if times > 1), key=lambda one: (-counts[one], one))

    def characters(self, spelling: str) -> int:
        """The number of characters of the text that a token stands for."""
        if self.name != "byte_bpe":
            return len(spelling.replace(SPACE, ""))
        # A part of a character decodes to nothing, and counts as one.
        return max(1, len(self.spelt(spelling).decode(errors="ignore")))

    def may_be_token(self, spelling: str) -> bool:
        """Whether a spelling may become a token: at byte level only whole characters, or a part of one."""
        if self.name != "byte_bpe":
            return "\n" not in spelling and not _is_byte(spelling)
        return is_whole(self.spelt(spelling))

    def spelt(self, spelling: str) -> bytes:
        """The bytes behind the letters of a byte-level token."""
        letters = bytes_of_letters()
        return bytes(letters[letter] for letter in spelling)

    def text_of(self, spelling: str) -> str | None:
        """The text of a token; None for a byte, a part of a character, and other tokens without text."""
        if self.name != "byte_bpe":
            return None if _is_byte(spelling) else spelling.replace(SPACE, " ")
        if not set(spelling) <= set(bytes_of_letters()):
            return None
        try:
            return self.spelt(spelling).decode()
        except UnicodeDecodeError:
            return None


def kind_of(tokenizer: PreTrainedTokenizerBase) -> Kind:
    """The kind of a tokenizer that can grow.

    Raises:
        ArgumentError: WordPiece, word tables, or pieces spelt in a way of their own.
    """
    backend = tokenizer.backend_tokenizer
    content = json.loads(backend.to_str())
    model = content["model"]
    if model["type"] == "Unigram":
        return Kind("unigram", content, backend)
    # Spellings that mark the inside or the end of words (##, </w>) would need merges of their own kind.
    plain = not model.get("continuing_subword_prefix") and not model.get("end_of_word_suffix")
    if model["type"] == "BPE" and plain:
        return Kind("byte_bpe" if "ByteLevel" in _types(content["pre_tokenizer"]) else "bpe", content, backend)
    raise ArgumentError(
        f"a tokenizer of the kind {model['type']} cannot learn new words here",
        place="--model_name_or_path / --tokenizer_name_or_path",
        fix="byte-level BPE, BPE with byte fallback and Unigram can; single tokens: hftune vocab add",
    )


def _types(part: Any) -> set[str]:
    """Names of all steps of a pre-tokenizer."""
    if not isinstance(part, dict):
        return set()
    steps = part.get("pretokenizers") or []
    return {part["type"]}.union(*(_types(step) for step in steps))


def _byte(item: tuple[str, int]) -> int:
    return item[1]


def _is_byte(spelling: str) -> bool:
    return bool(re.search("<0x[0-9A-F]{2}>", spelling))
