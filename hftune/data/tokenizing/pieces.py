"""The first token ids of long texts, read piece by piece; pieces are cut where words are sure to end (`words.py`)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from hftune.data.tokenizing.density import HEAD, Density, width
from hftune.data.tokenizing.words import nearest_border

_FIRST_LOOK = 16
"""Texts whose beginnings are tokenised to learn how long tokens are."""
_MARGIN = 8
"""Characters that a piece is made longer: a further piece costs more than some tokens too many."""


@dataclass(slots=True)
class Prefix:
    """The ids of the first `covered` characters of a text; they are the first ids of the whole text."""

    text: str
    ids: array[int] = field(default_factory=lambda: array("i"))
    covered: int = 0

    def lacks(self, length: int) -> bool:
        """Whether the text has more ids, and there are not `length` yet."""
        return len(self.ids) < length and self.covered < len(self.text)

    def goal(self, length: int) -> int:
        """Characters that probably hold so many tokens, by those that were read."""
        missing = length - len(self.ids)
        return self.covered + missing * self.covered // max(1, len(self.ids)) + _MARGIN


class PieceReader:
    """Reads texts that already hold their special tokens, by the tokenizer's quickest call.

    Args:
        tokenizer: One that `words.has_borders`.
        max_length: Tokens that are wanted of each text; None for all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> None:
        self.backend = tokenizer.backend_tokenizer
        self.max_length = max_length
        self.density = Density()

    def __call__(self, texts: list[str]) -> list[Prefix | None]:
        """`max_length` ids of each text or more, or all that it has; None where no word is sure to end near the cut."""
        self.backend.no_truncation()
        self.backend.no_padding()
        found = [Prefix(text) for text in texts]
        if self.max_length is None:
            self._read(found, [len(text) for text in texts])
            return [*found]
        open_ = self._read(found, self._first_goals(texts, self.max_length))
        self._learn(open_)
        while open_ := [prefix for prefix in open_ if prefix.lacks(self.max_length)]:
            open_ = self._read(open_, [prefix.goal(self.max_length) for prefix in open_])
        return [None if prefix.lacks(self.max_length) else prefix for prefix in found]

    def _read(self, prefixes: list[Prefix], goals: list[int]) -> list[Prefix]:
        """Read each text on to a border near a character; those that have one."""
        pairs = zip(prefixes, goals, strict=True)
        borders = [(prefix, nearest_border(prefix.text, goal, prefix.covered)) for prefix, goal in pairs]
        reached = [(prefix, border) for prefix, border in borders if border is not None]
        pieces = [prefix.text[prefix.covered : border] for prefix, border in reached]
        encodings = self.backend.encode_batch_fast(pieces, add_special_tokens=False)
        for (prefix, border), encoding in zip(reached, encodings, strict=True):
            # As bytes at once: lists of numbers would fill the memory of a whole batch.
            prefix.ids.extend(encoding.ids)
            prefix.covered = border
        return [prefix for prefix, _ in reached]

    def _first_goals(self, texts: list[str], length: int) -> list[int]:
        """Characters that probably hold so many tokens, by those of other texts."""
        if not self.density.known:
            heads = [Prefix(text[:HEAD]) for text in texts[:_FIRST_LOOK]]
            self._learn(self._read(heads, [HEAD] * len(heads)))
        characters = length * self.density.characters(_widths(texts)) + _MARGIN
        # Rarely has a text more than a token a character.
        return [max(length, goal) for goal in characters.astype(int).tolist()]

    def _learn(self, prefixes: list[Prefix]) -> None:
        seen = [prefix for prefix in prefixes if prefix.covered]
        tokens = np.array([len(prefix.ids) / prefix.covered for prefix in seen])
        self.density.learn(_widths([prefix.text for prefix in seen]), tokens)


def _widths(texts: list[str]) -> np.ndarray:
    return np.array([width(text) for text in texts])
