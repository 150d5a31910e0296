"""Token ids of the first tokens of long texts: what lies beyond the maximum length is not tokenised.

A tokenizer cuts a text into words by looking at most a little ahead, and tokenises each word on its own. So the tokens
of a text's beginning are those of the whole text, up to some words before the cut. Where a tokenizer has no such words
(SentencePiece models without a pre-tokenizer), only the text between special tokens counts as one word, and more of the
text is read.
"""

from __future__ import annotations

import numpy as np
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from hftune.data.templates.respelled_tokenizer import RespelledTokenizer, by_spelling
from hftune.data.tokenizing.density import Density, width

_AHEAD = 2
"""Characters that a tokenizer's word borders may depend on beyond the word."""


class PrefixEncoder:
    """Encodes texts that already hold their special tokens.

    Args:
        tokenizer: A fast tokenizer, or one that is spelled otherwise.
        max_length: Tokens that are wanted of each text; None for all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | RespelledTokenizer, max_length: int | None) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.max_length = max_length
        added = [token for token in tokenizer.get_added_vocab() if token]
        self.longest, self.openings = max(map(len, added), default=0), {token[0] for token in added}
        self.density = Density()
        self.spelled: PrefixEncoder | None = None

    def __call__(self, texts: list[str]) -> list[tuple[Encoding, int]]:
        """(encoding, characters of the text that it covers) of each text.

        The first `max_length` tokens are those of the whole text. Where the text is covered whole, all tokens are.
        """
        return by_spelling(texts, self._read, self._read_spelled)

    def _read_spelled(self, texts: list[str], spelling: RespelledTokenizer) -> list[tuple[Encoding, int]]:
        """The same by the tokenizer in which borders have stand-ins."""
        self.spelled = self.spelled or PrefixEncoder(spelling, self.max_length)
        return self.spelled(texts)

    def _read(self, texts: list[str]) -> list[tuple[Encoding, int]]:
        self.backend.no_truncation()
        self.backend.no_padding()
        if self.max_length is None:
            return [(found, len(text)) for found, text in zip(self._encode(texts), texts, strict=True)]
        done: list[tuple[Encoding, int] | None] = [None] * len(texts)
        if not self.density.known:
            # Without a first look the whole batch would be read much too far, or twice.
            heads = [text[: self.max_length] for text in texts[:16]]
            self._learn(heads, self._encode(heads))
        open_ = {index: min(len(text), self._reach(text)) for index, text in enumerate(texts)}
        while open_:
            prefixes = [texts[index][:reach] for index, reach in open_.items()]
            missed = {}
            encodings = self._encode(prefixes)
            self._learn(prefixes, encodings)
            for (index, reach), prefix, found in zip(open_.items(), prefixes, encodings, strict=True):
                if reach == len(texts[index]) or self._settled(found, prefix):
                    done[index] = (found, reach)
                else:
                    missed[index] = min(len(texts[index]), reach * 5 // 4)
            open_ = missed
        return [pair for pair in done if pair is not None]

    def _reach(self, text: str) -> int:
        """How many characters probably hold `max_length` tokens and the margin."""
        assert self.max_length is not None
        if len(text) <= self.max_length:
            return len(text)  # rarely more than a token a character
        return int(1.1 * self.max_length * self.density.characters(np.array([width(text)]))[0]) + 16

    def _learn(self, texts: list[str], encodings: list[Encoding]) -> None:
        pairs = [(width(text), len(found) / len(text)) for text, found in zip(texts, encodings, strict=True) if text]
        self.density.learn(*np.array(pairs).reshape(-1, 2).T)

    def _encode(self, texts: list[str]) -> list[Encoding]:
        found: list[Encoding] = self.backend.encode_batch(texts, add_special_tokens=False)
        return found

    def _settled(self, encoding: Encoding, prefix: str) -> bool:
        """Whether the first `max_length` tokens cannot change with what follows the prefix."""
        assert self.max_length is not None
        if len(encoding) <= self.max_length:
            return False
        # A special token that the cut divides is read as words of its own, and may join the word before it.
        tail = prefix[-self.longest :]
        doubtful = len(tail) if self.openings.intersection(tail) else 0
        edge = encoding.char_to_word(max(0, len(prefix) - doubtful - _AHEAD))
        last = encoding.token_to_word(self.max_length - 1)
        return edge is not None and last is not None and last + 2 <= edge
