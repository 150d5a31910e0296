"""Texts to ids and labels without character ranges, for byte-level tokenizers.

Every token of a byte-level tokenizer stands for bytes that never change. So ids alone say where each token lies, and
the tokenizer's quickest call, which computes no ranges, is enough to mask. For each text it is checked that its tokens
have as many bytes as the text. Tokenizers and texts for which that does not hold go by ranges, in `prefixes.py`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

from hftune.constants import IGNORE_INDEX
from hftune.data.tokenizing.pieces import PieceReader, Prefix
from hftune.data.tokenizing.words import has_borders, is_composed

Span = tuple[int, int]


@dataclass(slots=True)
class Tokens:
    """The first tokens of a text: ids and labels (length,) int32, and with weights one for each token, float32."""

    ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    trained: int
    """Labels that are not IGNORE_INDEX. The first does not count: no token before it could predict it."""
    cut: bool
    """Whether the text has more tokens."""


def is_bytewise(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether each token of a tokenizer stands for fixed bytes, and words end where `words.py` says."""
    if not tokenizer.is_fast:
        return False
    backend = tokenizer.backend_tokenizer
    model = backend.model
    if not isinstance(model, BPE) or model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    return isinstance(backend.normalizer, NFC | None) and has_borders(tokenizer)


class ByteTokenizer:
    """Ids and labels of texts that already hold their special tokens.

    Args:
        tokenizer: One that `is_bytewise`.
        max_length: Tokens that are wanted of each text; None for all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> None:
        self.read = PieceReader(tokenizer, max_length)
        self.max_length = max_length
        self.normalizes = tokenizer.backend_tokenizer.normalizer is not None
        self.sizes = _bytes_of_tokens(tokenizer)

    def __call__(
        self, texts: list[str], spans: list[list[Span]], weights: list[list[float]] | None = None
    ) -> list[Tokens | None]:
        """The first `max_length` tokens of each text.

        Args:
            spans: What is trained of each text: (start, end) in characters, sorted and disjoint.
            weights: One for each span; None for no weights.

        Returns:
            A token is trained where it shares a character with a span. None for a text that has to go the other way.
        """
        prefixes = self.read(texts)
        batch = _Batch([prefix.ids if prefix else array("i") for prefix in prefixes], self.sizes)
        sound = [
            prefix is not None
            and type(prefix.text) is str  # not one with borders in its contents, which are spelled otherwise
            and batch.place(index, *_byte_ranges(prefix, ranges))
            and not (self.normalizes and not is_composed(prefix.text[: prefix.covered]))
            for index, (prefix, ranges) in enumerate(zip(prefixes, spans, strict=True))
        ]
        found = batch.tokens(self.max_length, weights)
        for prefix, tokens in zip(prefixes, found, strict=True):
            tokens.cut = tokens.cut or (prefix is not None and prefix.covered < len(prefix.text))
        return [tokens if good else None for tokens, good in zip(found, sound, strict=True)]


class _Batch:
    """The ids of several texts in one row, and the bytes they stand for.

    Args:
        ids: Those of each text.
        sizes: Bytes of each token of the vocabulary.
    """

    def __init__(self, ids: list[array[int]], sizes: np.ndarray) -> None:
        self.ids = np.frombuffer(b"".join(ids), dtype=np.int32)
        # The type is named because numpy makes floats, which are no places, of no numbers at all.
        lengths = np.array([len(part) for part in ids], dtype=np.int64)
        self.stops = np.cumsum(lengths)
        self.starts = self.stops - lengths
        taken = sizes[self.ids]
        self.ends = np.cumsum(taken)
        self.begins = self.ends - taken
        # Where each text begins and ends among the bytes of all.
        self.borders = np.append(0, self.ends)[np.append(0, self.stops)].tolist()
        self.placed: list[tuple[int, int]] = []
        self.ranges: list[Span] = []

    def place(self, index: int, ranges: list[Span], size: int) -> bool:
        """Take in what is trained of a text, in bytes; False if its tokens do not have the bytes of the text."""
        begin = self.borders[index]
        if self.borders[index + 1] - begin != size:
            return False
        self.placed += [(index, number) for number in range(len(ranges))]
        self.ranges += [(begin + start, begin + end) for start, end in ranges]
        return True

    def tokens(self, max_length: int | None, weights: list[list[float]] | None) -> list[Tokens]:
        """The first tokens of each text."""
        labels = np.full(len(self.ids), IGNORE_INDEX, dtype=np.int32)
        scale = None if weights is None else np.zeros(len(self.ids), dtype=np.float32)
        ranges = np.array(self.ranges, dtype=np.int64).reshape(-1, 2)
        firsts = np.searchsorted(self.ends, ranges[:, 0], side="right").tolist()
        lasts = np.searchsorted(self.begins, ranges[:, 1], side="left").tolist()
        for first, last, (index, number) in zip(firsts, lasts, self.placed, strict=True):
            labels[first:last] = self.ids[first:last]
            if scale is not None and weights is not None:
                scale[first:last] = weights[index][number]
        return self._cut(labels, scale, max_length)

    def _cut(self, labels: np.ndarray, scale: np.ndarray | None, max_length: int | None) -> list[Tokens]:
        starts = self.starts
        stops = self.stops if max_length is None else np.minimum(self.stops, starts + max_length)
        before = np.append(0, np.cumsum(labels != IGNORE_INDEX))
        trained = before[stops] - before[np.minimum(starts + 1, stops)]
        bounds = zip(starts.tolist(), stops.tolist(), (stops < self.stops).tolist(), trained.tolist(), strict=True)
        found = []
        for start, stop, cut, count in bounds:
            weights = None if scale is None else scale[start:stop]
            found.append(Tokens(self.ids[start:stop], labels[start:stop], weights, count, cut))
        return found


def _byte_ranges(prefix: Prefix, ranges: list[Span]) -> tuple[list[Span], int]:
    """The ranges (in characters) as far as the prefix covers them, in bytes, and the bytes of all that it covers."""
    text, covered = prefix.text, prefix.covered
    found, reached, at = [], 0, 0
    for start, end in ranges:
        if start >= covered:
            break
        end = min(end, covered)
        begin = at + len(text[reached:start].encode())
        at = begin + len(text[start:end].encode())
        reached = end
        found.append((begin, at))
    return found, at + len(text[reached:covered].encode())


def _bytes_of_tokens(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """The bytes that each token id stands for, int64; 0 for what does not come from bytes."""
    backend = tokenizer.backend_tokenizer
    alphabet = frozenset(ByteLevel.alphabet())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    sizes = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for token, index in vocabulary.items():
        sizes[index] = len(token) if alphabet.issuperset(token) else 0
    for index, added in backend.get_added_tokens_decoder().items():
        sizes[index] = len(added.content.encode())
    return sizes
