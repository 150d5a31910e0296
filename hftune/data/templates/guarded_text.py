"""Texts that spell turn borders which stay text (`turn_token_guard.py`), and their encodings.

A tokenizer looks for `<|im_end|>` before it makes words. Of a text that is cut inside of it, `<` and `|im_end|>`, each
part is words and pieces like any other, and what stands around it is encoded as between two tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

KIND = "turn border in a text"
FLAG = "--borders_in_text"

Result = TypeVar("Result")


class GuardedText(str):
    """A text that spells borders.

    Attributes:
        tokens: The borders that were found.
        cuts: Where it is cut, ascending, so that they stay text; none where they are encoded as what they spell.
    """

    tokens: tuple[str, ...]
    cuts: tuple[int, ...]


def turn_tokens_in(text: str) -> tuple[str, ...]:
    """The turn tokens that the contents of a text spell."""
    return text.tokens if type(text) is GuardedText else ()


@dataclass(frozen=True, slots=True)
class JoinedEncoding:
    """The encodings of the parts of a text; what labels ask of an `Encoding`, by the same names."""

    ids: list[int]
    offsets: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.ids)

    def char_to_token(self, position: int) -> int | None:
        """The first token that holds a character."""
        return next((index for index, (start, end) in enumerate(self.offsets) if start <= position < end), None)

    def token_to_chars(self, token: int) -> tuple[int, int] | None:
        """The character range of a token; None behind the last one."""
        return self.offsets[token] if token < len(self.offsets) else None


AnyEncoding = Encoding | JoinedEncoding


def encode_parts(backend: Tokenizer, text: GuardedText, *, add_special_tokens: bool = False) -> JoinedEncoding:
    """The encoding of a text whose borders stay text; whole, without padding."""
    backend.no_truncation()
    backend.no_padding()
    first = backend.encode(text[: text.cuts[0]], add_special_tokens=add_special_tokens)
    # What the tokenizer writes behind a text belongs behind the last part.
    end = len(first.ids)
    while end and first.special_tokens_mask[end - 1]:
        end -= 1
    ids, offsets = first.ids[:end], first.offsets[:end]
    # The other parts behind a token, as they are in a text: at the beginning of a text some tokenizers write a space.
    before = text.tokens[0]
    for start, stop in zip(text.cuts, [*text.cuts[1:], len(text)], strict=True):
        part = backend.encode(before + text[start:stop], add_special_tokens=False)
        moved = start - len(before)
        for index, (left, right) in zip(part.ids, part.offsets, strict=True):
            if right > len(before):
                ids.append(index)
                offsets.append((max(left + moved, start), right + moved))
    return JoinedEncoding(ids + first.ids[end:], offsets + first.offsets[end:])


def by_kind(
    texts: list[str], plain: Callable[[list[str]], Sequence[Result]], parts: Callable[[GuardedText], Result]
) -> list[Result]:
    """Results in the order of `texts`: `parts` of each text with cuts, `plain` of all others in one call."""
    rest = iter(plain([text for text in texts if not _is_cut(text)]))
    return [parts(text) if isinstance(text, GuardedText) and text.cuts else next(rest) for text in texts]


def _is_cut(text: str) -> bool:
    return isinstance(text, GuardedText) and bool(text.cuts)


def encode_batch(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], *, add_special_tokens: bool
) -> list[AnyEncoding]:
    """Encodings by the tokenizer's quickest call, whole, without padding."""
    backend = tokenizer.backend_tokenizer

    def encodings(texts: list[str]) -> list[AnyEncoding]:
        backend.no_truncation()
        backend.no_padding()
        return [*backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

    return by_kind(texts, encodings, lambda text: encode_parts(backend, text, add_special_tokens=add_special_tokens))


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
    """Token ids of texts, by any tokenizer."""

    def ids(texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        options: dict[str, Any] = {"add_special_tokens": add_special_tokens, "return_attention_mask": False}
        return [list(one) for one in tokenizer(texts, verbose=False, **options)["input_ids"]]

    def parts(text: GuardedText) -> list[int]:
        return encode_parts(tokenizer.backend_tokenizer, text, add_special_tokens=add_special_tokens).ids

    return by_kind(texts, ids, parts)
