"""A tokenizer whose turn tokens are spelled otherwise, so that their usual spelling is text (`turn_token_guard.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from hftune.errors import DataError

KIND = "turn border in a text"
FLAG = "--borders_in_text"

Result = TypeVar("Result")


class GuardedText(str):
    """A rendered text with borders in what is said.

    Attributes:
        tokens: The borders that were found.
        spelled: The text with stand-ins for the template's own borders, of the same length, for `spelling`; None where
            borders are encoded as what they spell.
    """

    tokens: tuple[str, ...]
    spelled: str | None
    spelling: RespelledTokenizer


def turn_tokens_in(text: str) -> tuple[str, ...]:
    """The turn tokens that the contents of a text spell."""
    return text.tokens if type(text) is GuardedText else ()


class RespelledTokenizer:
    """A tokenizer whose border tokens are spelled by stand-ins, as far as `PrefixEncoder` asks for it.

    Args:
        tokenizer: A fast one.
        spelled: The stand-in of each border.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, spelled: dict[str, str]) -> None:
        self.tokenizer, self.spelled = tokenizer, spelled
        self._backend: Tokenizer | None = None

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """Built when it is first needed."""
        # In the process that needs it: building takes seconds for a large vocabulary, and most data have no such text.
        if self._backend is None:
            self._backend = respelled(self.tokenizer.backend_tokenizer, self.spelled)
            _check(self._backend, self.tokenizer, self.spelled)
        return self._backend

    def get_added_vocab(self) -> dict[str, int]:
        """As transformers'."""
        return {self.spelled.get(text, text): index for text, index in self.tokenizer.get_added_vocab().items()}


def by_spelling(
    texts: list[str],
    plain: Callable[[list[str]], Sequence[Result]],
    other: Callable[[list[str], RespelledTokenizer], Sequence[Result]],
) -> list[Result]:
    """Results in the order of `texts`: of those to be spelled with stand-ins by `other`, of all others by `plain`."""
    # The rest of the batch goes to the plain tokenizer in one call, as if there were no other.
    kept = [text for text in texts if type(text) is GuardedText and text.spelled is not None]
    if not kept:
        return [*plain(texts)]
    others = iter(other([str(text.spelled) for text in kept], kept[0].spelling))
    marked = [type(text) is GuardedText and text.spelled is not None for text in texts]
    rest = iter(plain([text for text, mark in zip(texts, marked, strict=True) if not mark]))
    return [next(others) if mark else next(rest) for mark in marked]


def encode_batch(tokenizer: PreTrainedTokenizerBase, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
    """Encodings by the tokenizer's quickest call, whole, without padding."""

    def encodings(texts: list[str], spelling: Any = tokenizer) -> list[Any]:
        backend = spelling.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        found: list[Any] = backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return found

    return by_spelling(texts, encodings, encodings)


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
    """Token ids of texts, by any tokenizer."""

    def ids(texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        options: dict[str, Any] = {"add_special_tokens": add_special_tokens, "return_attention_mask": False}
        found = tokenizer(texts, verbose=False, **options)["input_ids"]
        return [list(one) for one in found]

    def spelled(texts: list[str], spelling: RespelledTokenizer) -> list[list[int]]:
        backend = spelling.backend_tokenizer
        return [one.ids for one in backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

    return by_spelling(texts, ids, spelled)


def respelled(backend: Tokenizer, spelled: dict[str, str]) -> Tokenizer:
    """A copy of a tokenizer in which some tokens have other texts and are all else: ids, other tokens, words."""
    # By its own serialisation: nothing else reaches the inside of a Rust tokenizer.
    state = json.loads(backend.to_str())
    state["truncation"] = state["padding"] = None
    for token in state["added_tokens"]:
        if token["content"] in spelled:
            # Not normalised: a normaliser might change the stand-ins' characters.
            token["content"], token["normalized"] = spelled[token["content"]], False
    model = state["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {spelled.get(text, text): index for text, index in vocabulary.items()}
    else:
        model["vocab"] = [[spelled.get(text, text), score] for text, score in vocabulary]
    # The model would not load without it.
    if model.get("unk_token") in spelled:
        model["unk_token"] = spelled[model["unk_token"]]
    if "merges" in model:
        # With these merges, the letters of a token's usual text would be put together again.
        model["merges"] = [pair for pair in model["merges"] if not _makes(pair, spelled)]
    return Tokenizer.from_str(json.dumps(state, ensure_ascii=False))


def _makes(pair: Any, tokens: Iterable[str]) -> bool:
    """Whether a merge makes or takes one of these tokens."""
    left, right = pair.split(" ") if isinstance(pair, str) else pair
    return left in tokens or right in tokens or left + right in tokens


def _check(backend: Tokenizer, tokenizer: PreTrainedTokenizerBase, spelled: dict[str, str]) -> None:
    """Refuse a tokenizer that does not do with stand-ins as it should.

    Raises:
        DataError: It makes border tokens of text, or something else of a stand-in.
    """
    # Tried on the tokens themselves: what a tokenizer does with a changed vocabulary differs by its kind.
    ids = {tokenizer.convert_tokens_to_ids(token) for token in spelled}
    wrong = [
        token
        for token, stand_in in spelled.items()
        if backend.encode(stand_in, add_special_tokens=False).ids != [tokenizer.convert_tokens_to_ids(token)]
        or not ids.isdisjoint(backend.encode(token, add_special_tokens=False).ids)
    ]
    if wrong:
        raise DataError(
            f"this tokenizer cannot write {', '.join(wrong)} as text",
            place=FLAG,
            fix=f"Write {FLAG} error with --on_bad_record drop, or {FLAG} allow.",
            kind=KIND,
        )
