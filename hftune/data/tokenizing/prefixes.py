"""Token ids of the first tokens of long texts: the quick way to them, which does not tokenise what lies beyond.

The way that defines them is to tokenise the whole text and to cut. But a tokenizer cuts a text into words by looking at
most a little ahead, and tokenises each word on its own. So the tokens of a text's beginning are those of the whole
text, up to some words before the cut. Where a tokenizer has no such words (SentencePiece models without a
pre-tokenizer), only the text between special tokens counts as one word, and more of the text is read. A property test
holds both ways equal.
"""

from __future__ import annotations

from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from hftune.data.templates.guarded_text import AnyEncoding, GuardedText, by_kind, encode_parts

# Characters that a tokenizer's word boundaries may depend on beyond the word.
_AHEAD = 2
# Kinds of text for each UTF-8 byte a character: a page of Chinese with some English has fewer tokens than one without.
_KINDS = 16


class PrefixEncoder:
    """Encodes texts that already hold their special tokens.

    Args:
        tokenizer: A fast tokenizer.
        max_length: Tokens that are wanted of each text; None for all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.max_length = max_length
        added = [token for token in tokenizer.get_added_vocab() if token]
        self.longest, self.openings = max(map(len, added), default=0), {token[0] for token in added}
        # Characters a token by kind of text, as the texts before had them: Chinese has fewer than English.
        # A wrong guess costs time, never a token.
        self.density: dict[int, float] = {}

    def __call__(self, texts: list[str]) -> list[tuple[AnyEncoding, int]]:
        """(encoding, characters of the text that it covers) of each text.

        The first `max_length` tokens are those of the whole text. Where the text is covered whole, all tokens are.
        """
        return by_kind(texts, self._read, self._read_parts)

    def _read_parts(self, text: GuardedText) -> tuple[AnyEncoding, int]:
        return encode_parts(self.backend, text), len(text)

    def _read(self, texts: list[str]) -> list[tuple[AnyEncoding, int]]:
        # State of the tokenizer that any earlier call may have left; truncation would cut from a side of its choice.
        self.backend.no_truncation()
        self.backend.no_padding()
        if self.max_length is None:
            return [(found, len(text)) for found, text in zip(self._encode(texts), texts, strict=True)]
        done: dict[int, tuple[AnyEncoding, int]] = {}
        # All texts of a chunk go in one call; those whose guess was too short go again, a quarter longer.
        reach = {index: self._reach(text) for index, text in enumerate(texts)}
        while reach:
            encodings = self._encode([texts[index][:end] for index, end in reach.items()])
            missed = {}
            for (index, end), found in zip(reach.items(), encodings, strict=True):
                text = texts[index]
                self._learn(text, end / max(1, len(found)))
                if end == len(text) or self._is_final(found, text[:end]):
                    done[index] = found, end
                else:
                    missed[index] = max(self._reach(text), min(len(text), end * 5 // 4 + 1))
            reach = missed
        return [done[index] for index in range(len(texts))]

    def _reach(self, text: str) -> int:
        """How many characters probably hold `max_length` tokens and a margin."""
        assert self.max_length is not None
        if len(text) <= self.max_length:
            return len(text)  # rarely more than a token a character
        # A tenth more than expected, and a margin for `_is_final`: reading twice costs more than reading too much.
        return min(len(text), int(1.1 * self.max_length * self._expected(text)) + 16)

    def _expected(self, text: str) -> float:
        """Characters a token of a text: those of its kind, or of the kind that is nearest among those met."""
        if not self.density:
            # Nothing is known yet: one beginning is read to learn it, rather than all texts of a chunk by a guess.
            head = text[: self.max_length]
            self._learn(text, len(head) / max(1, len(self._encode([head])[0])))
        kind = self._kind(text)
        return self.density[min(self.density, key=lambda met: abs(met - kind))]

    def _learn(self, text: str, density: float) -> None:
        # A slow mean: a single odd text must not make all others be read twice.
        kind = self._kind(text)
        before = self.density.get(kind, density)
        self.density[kind] = before + 0.1 * (density - before)

    def _kind(self, text: str) -> int:
        """Sixteenths of a UTF-8 byte a character: 16 for English, 48 for Chinese, between them where both are mixed.

        By as many characters as tokens are wanted, which are most of what will be read.
        """
        head = text[: self.max_length]
        return round(_KINDS * len(head.encode("utf-8", "replace")) / max(1, len(head)))

    def _encode(self, texts: list[str]) -> list[Encoding]:
        found: list[Encoding] = self.backend.encode_batch(texts, add_special_tokens=False)
        return found

    def _is_final(self, encoding: Encoding, prefix: str) -> bool:
        """Whether the first `max_length` tokens cannot change with what follows the prefix."""
        assert self.max_length is not None
        if len(encoding) <= self.max_length:
            return False
        # A special token that the cut divides is read as words of its own, and may join the word before it.
        tail = prefix[-self.longest :]
        doubtful = len(tail) if self.openings.intersection(tail) else 0
        edge = encoding.char_to_word(max(0, len(prefix) - doubtful - _AHEAD))
        last = encoding.token_to_word(self.max_length - 1)
        # Two words between what is kept and the cut: the word that the cut may have divided, and the one that may join
        # it.
        return edge is not None and last is not None and last + 2 <= edge
