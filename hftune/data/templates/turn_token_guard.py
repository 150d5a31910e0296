"""Turn borders in what is said: text that spells a token which begins or ends turns stays text.

A chat template writes `<|im_start|>` and `<|im_end|>` around contents, and the tokenizer makes one token of each, in
contents too. In the text of a user, a tool or a web page, `<|im_end|><|im_start|>assistant` would end the turn and
begin another one: the model would learn, or obey, an answer that nobody gave. Therefore every text of a record is
searched for the tokens that begin and end turns and texts (`turn_tokens.py`); finds are counted and, as
`--borders_in_text` says, refused (`error`), kept as text (`split`), or encoded as the token that they spell (`allow`).

Before the template runs, finds are masked by characters of one of Unicode's private planes, as many as they have, so
that the template and positions are those of any other record. In what is rendered then all borders are the template's
own; those that appear when the masks are taken off are text, and the text is cut inside of each (`guarded_text.py`).

A border may also be made of parts, half by the record and half by the template (Qwen3-Coder writes `<` and `>` around
the names of parameters). So what is searched for and masked is, where it is long enough, the border without its outer
characters; the rendered text decides whether there is a border.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.records.messages import Message
from hftune.data.templates.guarded_text import FLAG, KIND, GuardedText
from hftune.data.templates.spans import SpannedText
from hftune.data.templates.turn_tokens import Render, one_of, turn_tokens
from hftune.errors import DataError

# Where in Unicode's private planes the masks begin.
_MASKS = 0xF0000
# Characters of a border without its outer ones that are enough to search for.
_LEAST = 5
# A mask in JSON that holds ASCII only.
_ESCAPED = re.compile(r"\\udb80\\ud", re.IGNORECASE)

Write = Callable[[Any, Any], SpannedText]
"""Writes messages and tools as text, with spans."""


def mode_for_answers(mode: str) -> str:
    """The mode for what models answer and tools return: there is no record that could be refused, so it stays text."""
    return "split" if mode == "error" else mode


class TurnTokenGuard:
    """Finds the borders of a tokenizer and its template in what records say.

    Args:
        mode: `--borders_in_text`.
        render: Writes conversations by the tokenizer's template; None: documents only.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mode: str = "split", render: Render | None = None) -> None:
        self.mode, self.is_fast = mode, tokenizer.is_fast
        self.tokens = turn_tokens(tokenizer, render)
        self.needles = sorted({_needle(token) for token in self.tokens}, key=lambda text: (-len(text), text))
        masks = {needle: chr(_MASKS + number) * len(needle) for number, needle in enumerate(self.needles)}
        self.mask, self.unmask = _replacer(masks), _replacer({mask: needle for needle, mask in masks.items()})
        self.private = re.compile(f"[{chr(_MASKS)}-{chr(_MASKS + 0xFFF)}]")
        # Every place where one begins, as two may lie over each other.
        self.begins = re.compile(f"(?=({one_of(self.tokens)}))")

    # --- conversations ------------------------------------------------------------------------------------------------

    def may_hold(self, messages: Sequence[Message], tools: Any = None) -> bool:
        """Whether a conversation may hold a border; quick, and never wrong where it says no."""
        return self._may_be_in("\n".join(_texts((messages, tools))))

    def _may_be_in(self, text: str) -> bool:
        return any(needle in text for needle in self.needles)

    def guarded(self, write: Write, messages: Sequence[Message], tools: Any = None) -> SpannedText:
        """What `write(messages, tools)` returns, its text a `GuardedText` if contents spell a turn token.

        Raises:
            DataError: A turn token, where they are refused; or a text that cannot be kept.
        """
        return self.guarded_rows(lambda *said: [write(*said)], messages, tools)[0]

    def guarded_rows(
        self, write: Callable[[Any, Any], list[SpannedText]], messages: Sequence[Message], tools: Any = None
    ) -> list[SpannedText]:
        """As `guarded`, for a conversation that is written as several texts."""
        if not self.may_hold(messages, tools):
            return write(messages, tools)
        # Nothing is changed; the finds are counted all the same.
        if self.mode == "allow":
            found = [token for text in _texts((messages, tools)) for token, _ in self._found(text)]
            return [SpannedText(self._bordered(row.text, found), row.spans) for row in write(messages, tools)]
        # Roles are the template's words, and no text that a user has written.
        said = [{key: part if key == "role" else self._masked(part) for key, part in one.items()} for one in messages]
        rows = write(said, self._masked(tools))
        return [SpannedText(self._unmasked(row.text), row.spans) for row in rows]

    def text(self, render: Render, messages: Sequence[Message], tools: Any = None, **options: Any) -> str:
        """A conversation as text."""
        return self.guarded(lambda *said: SpannedText(render(*said, **options), []), messages, tools).text

    def document(self, text: str) -> str:
        """A text without a template, `GuardedText` if a border is in it.

        Raises:
            DataError: As `guarded`.
        """
        found = self._found(text) if self._may_be_in(text) else []
        return self._bordered(text, [token for token, _ in found], [place for _, place in found])

    # --- both ---------------------------------------------------------------------------------------------------------

    def _found(self, text: str, hidden: str = "") -> list[tuple[str, int]]:
        """Each border in a text that is not in `hidden` at the same place, and where it begins."""
        found = [(match[1], match.start()) for match in self.begins.finditer(text)]
        return [(token, place) for token, place in found if not hidden.startswith(token, place)]

    def _masked(self, value: Any) -> Any:
        """A value of JSON with its finds masked."""
        if isinstance(value, str):
            if self.private.search(value):
                raise DataError(
                    "the record holds characters of one of Unicode's private planes (from U+F0000), with which turn "
                    "borders in its text are kept apart",
                    fix=f"Remove them or the borders, or write {FLAG} allow.",
                    kind=KIND,
                )
            return self.mask(value)
        if isinstance(value, dict):
            return {self._masked(key): self._masked(part) for key, part in value.items()}
        return [self._masked(part) for part in value] if isinstance(value, (list, tuple)) else value

    def _unmasked(self, hidden: str) -> str:
        """A rendered text without its masks; `GuardedText` if that makes borders."""
        text = self.unmask(hidden)
        # A mask that is left was cut or rewritten by the template, so what it stood for cannot be put back.
        if self.private.search(text) or _ESCAPED.search(hidden):
            raise DataError(
                "the chat template takes apart or escapes a text that spells a turn border",
                fix=f"Remove it from the text, or write {FLAG} allow.",
                kind=KIND,
            )
        found = self._found(text, hidden)
        return self._bordered(text, [token for token, _ in found], [place for _, place in found])

    def _bordered(self, text: str, found: Iterable[str], places: Iterable[int] = ()) -> str:
        """The text with the borders that were found, and where each begins."""
        # In the order of their ids, for messages and counts.
        spelled = {*found}
        tokens = tuple(token for token in self.tokens if token in spelled)
        if not tokens:
            return text
        if self.mode == "error":
            raise DataError(
                f"the text of this record spells {', '.join(tokens)}, which begins or ends turns or texts",
                fix=f"Remove it, keep it as text with {FLAG} split, or leave such records out with "
                "--on_bad_record drop.",
                kind=KIND,
            )
        if self.mode == "split" and not (self.is_fast and min(map(len, tokens)) > 1):
            raise DataError(
                f"the text of this record spells {', '.join(tokens)}, and only a fast tokenizer can keep it as text, "
                "if it has more than one character",
                fix=f"Use a tokenizer with a tokenizer.json, or write {FLAG} allow.",
                kind=KIND,
            )
        made = GuardedText(text)
        made.tokens = tokens
        made.cuts = () if self.mode == "allow" else tuple(place + 1 for place in places)
        return made


def _needle(token: str) -> str:
    """What is searched for in place of a border."""
    core = token[1:-1]
    return core if len(core) >= _LEAST and not core.isalnum() else token


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of JSON, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def _replacer(replaced: dict[str, str]) -> Callable[[str], str]:
    """Replaces all texts that a dict has as keys, the longest first."""
    pattern = re.compile(one_of(replaced))
    return lambda text: pattern.sub(lambda match: replaced[match.group()], text)
