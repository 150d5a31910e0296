"""Tokens to text as they come, up to a text at which the answer shall stop."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase


class TokenText:
    """The text of an answer, token by token: what it returns, put together, is the text of all tokens.

    Args:
        dropped: Ids of tokens that are no part of the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, dropped: Iterable[int] = ()) -> None:
        self.tokenizer, self.dropped = tokenizer, frozenset(dropped)
        self.ids: list[int] = []
        # Tokens from `start` are decoded together, since some tokenizers write a word by its neighbours; those up to
        # `read` have been returned.
        self.start = self.read = 0

    def __call__(self, token: int) -> str:
        """The text that this token completes; "" while a character lacks bytes."""
        if token in self.dropped:
            return ""
        self.ids.append(token)
        text, known = self._decoded(len(self.ids)), self._decoded(self.read)
        # A byte-level tokenizer decodes the first bytes of a character to U+FFFD.
        if len(text) <= len(known) or text.endswith("\ufffd"):
            return ""
        self.start, self.read = self.read, len(self.ids)
        return text[len(known) :]

    def rest(self) -> str:
        """What is left at the end, without a part of a character."""
        return self._decoded(len(self.ids))[len(self._decoded(self.read)) :].rstrip("\ufffd")

    def _decoded(self, end: int) -> str:
        return str(self.tokenizer.decode(self.ids[self.start : end], skip_special_tokens=False))


class StopFinder:
    """Passes on a text up to the first of some texts, holding back what may be the beginning of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops, self.held, self.found = stops, "", False

    def __call__(self, text: str) -> str:
        """What can be passed on; nothing more once one was found."""
        if self.found:
            return ""
        self.held += text
        places = [place for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if places:
            self.found = True
            return self._pass(min(places))
        # The longest end that begins one of them.
        held = next((size for size in range(self._longest, 0, -1) if self._begins(self.held[-size:])), 0)
        return self._pass(len(self.held) - held)

    def rest(self) -> str:
        """What was held back for nothing."""
        return "" if self.found else self._pass(len(self.held))

    @property
    def _longest(self) -> int:
        return min(len(self.held), max((len(stop) - 1 for stop in self.stops), default=0))

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self.stops)

    def _pass(self, count: int) -> str:
        passed, self.held = self.held[:count], self.held[count:]
        return passed
