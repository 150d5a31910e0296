"""The assistant's turns in many conversations: exact as `rendering.py`, without asking the template again and again.

Finding turns means rendering a conversation several times. But conversations of plain text with the same roles differ
in their contents only. So one conversation of each kind, its contents replaced by words that occur nowhere else, is
analysed by `rendering.Finder`; what stands around those words is the *form* of that kind. A record is rendered
once, and if that text is, character for character, the form filled with the record's contents, its turns are where they
are in the form. A record that differs (reasoning that a template drops, contents that it rewrites) is analysed on its
own. Where the template is proven to copy contents whatever they are (`parametric.py`), the filled form is the text, and
nothing is rendered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.records.messages import Message
from hftune.data.templates.parametric import Content, Part
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.turn_token_guard import TurnTokenGuard
from hftune.data.templates.turns import TurnFinder, common_start
from hftune.errors import DataError

Span = tuple[int, int]
Clean = Callable[[str], str]
"""What a template does to the white space at the ends of a content."""

_LEFT, _RIGHT = " \n", "\n "
_PLAIN = frozenset(("role", "content", "weight"))


@dataclass(frozen=True, slots=True)
class _Place:
    """A character position in a form: so many characters into the text before message `index` (or after the last)."""

    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class _Form:
    """What a template writes around the contents of one kind of conversation.

    `around` has one text more than there are messages; `clean` says what the template does to each content; `turns` are
    the trained turns: message index, start and end. `guards` are first characters of a content (by message index) that
    could make a template's own generation prompt reach into it, as `<think>` does. `proven`: any contents fit.
    """

    around: list[str]
    clean: list[Clean]
    turns: list[tuple[int, _Place, _Place]]
    guards: dict[int, str]
    proven: bool

    def fill(self, contents: list[str]) -> tuple[str, list[int]] | None:
        """The text with these contents, and where each of `around` starts in it; None for contents under a guard."""
        parts, starts, reached = [self.around[0]], [0], len(self.around[0])
        for index, (clean, content, following) in enumerate(zip(self.clean, contents, self.around[1:], strict=True)):
            said = clean(content)
            if index in self.guards and said[:1] in self.guards[index]:
                return None
            reached += len(said)
            starts.append(reached)
            reached += len(following)
            parts += (said, following)
        return "".join(parts), starts


class SpanFinder:
    """Renders conversations and finds what is trained in them; remembers the form of each kind it has met.

    Args:
        tokenizer: With the chat template to use.
        whole: Everything is trained.
        last_turn_only: Only the last assistant turn is trained.
        by_marks: As `rendering.Finder`'s.
        borders_in_text: What becomes of turn tokens that contents spell, a mode of `TurnTokenGuard`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        whole: bool = False,
        last_turn_only: bool = False,
        by_marks: bool = False,
        borders_in_text: str = "split",
    ) -> None:
        self.by_marks = by_marks
        self.tokenizer, self.whole, self.last_turn_only = tokenizer, whole, last_turn_only
        self.render = Renderer(tokenizer)
        self.forms: dict[tuple[str, ...], _Form | None] = {}
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)

    def __call__(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> tuple[str, list[Span], list[float]]:
        """The text of a conversation, the (start, end) in characters of its trained turns, and their weights.

        Raises:
            DataError: As `rendering.render_with_spans`; or a turn border in a content, where they are refused.
        """
        found: tuple[str, list[Span], list[float]] = self.guard.keep(self._found, messages, tools)
        return found

    def _found(
        self, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[str, list[Span], list[float]]:
        if self.whole:
            text = self.render(messages, tools)
            return text, [(0, len(text))], [1.0]
        if tools is None and all(_PLAIN.issuperset(message) for message in messages):
            found = self._by_form(messages)
            if found is not None:
                return found
        finder = TurnFinder(messages, self.render, tools, by_marks=self.by_marks)
        return finder.text, finder.spans(last_turn_only=self.last_turn_only), self._weights(messages)

    def _weights(self, messages: list[Message]) -> list[float]:
        """The weights of the turns that `Finder.spans` gives."""
        weights = [float(message.get("weight", 1.0)) for message in messages if message["role"] == "assistant"]
        return [weight for weight in (weights[-1:] if self.last_turn_only else weights) if weight != 0]

    def _by_form(self, messages: list[Message]) -> tuple[str, list[Span], list[float]] | None:
        roles = tuple([message["role"] for message in messages])
        if roles not in self.forms:
            self.forms[roles] = self._analyse(roles)
        form = self.forms[roles]
        if form is None:
            return None
        filled = form.fill([message["content"] for message in messages])
        if filled is None:
            return None
        # What the proof knows of a message is its role and its content.
        if not (form.proven and all(len(message) == 2 for message in messages)) and self.render(messages) != filled[0]:
            return None
        expected, starts = filled
        spans, weights = [], []
        for turn, start, end in form.turns:
            weight = float(messages[turn].get("weight", 1.0))
            if weight != 0:
                spans.append((starts[start.index] + start.offset, starts[end.index] + end.offset))
                weights.append(weight)
        return expected, spans, weights

    def _analyse(self, roles: tuple[str, ...]) -> _Form | None:
        """The form of conversations with these roles; None where the template does not show one."""
        words = [f"HFTUNE{number}PART" for number in range(len(roles))]
        try:
            finder = TurnFinder(_conversation(roles, words), self.render, by_marks=self.by_marks)
            spans = finder.spans(last_turn_only=self.last_turn_only)
            padded = self.render(_conversation(roles, [f"{_LEFT}{word}{_RIGHT}" for word in words]))
        except DataError:
            return None
        around, around_padded = _split(finder.text, words), _split(padded, words)
        if around is None or around_padded is None:
            return None
        clean = _cleaning(around, around_padded)
        turns = [index for index, role in enumerate(roles) if role == "assistant"]
        turns = turns[-1:] if self.last_turn_only else turns
        places = [(_place(start, around, words), _place(end, around, words)) for start, end in spans]
        if clean is None or any(start is None or end is None for start, end in places):
            return None
        turns_and_places = [(turn, *pair) for turn, pair in zip(turns, places, strict=True)]
        guards = self._guards(finder, words, turns)
        return _Form(around, clean, turns_and_places, guards, self._is_proven(roles, around, clean))  # type: ignore[arg-type]

    def _is_proven(self, roles: tuple[str, ...], around: list[str], clean: list[Clean]) -> bool:
        """Whether the template writes this form for any contents."""
        contents = [Content(index, *_KEEPS[cleaner]) for index, cleaner in enumerate(clean)]
        parts: list[Part] = [part for pair in zip(around, contents, strict=False) for part in pair]
        expected = [part for part in (*parts, around[-1]) if part != ""]
        return self.render.outline(roles) == expected

    def _guards(self, finder: TurnFinder, words: list[str], turns: list[int]) -> dict[int, str]:
        """First characters that would change what the exact finder, which compares beginnings of the text, finds."""
        begins = {finder.text.index(word): index for index, word in enumerate(words)}
        guards: dict[int, str] = {}
        for turn in turns:
            for beginning in (finder.beginning(turn, prompt=True), finder.beginning(turn + 1)):
                differs = len(common_start(beginning or "", finder.text))
                if beginning and differs < len(beginning) and differs in begins:
                    index = begins[differs]
                    guards[index] = guards.get(index, "") + beginning[differs]
        return guards


def _conversation(roles: tuple[str, ...], contents: list[str]) -> list[Message]:
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]


def _split(text: str, words: list[str]) -> list[str] | None:
    """What stands before, between and after the words; None unless each occurs once, in this order."""
    around, rest = [], text
    for word in words:
        before, found, rest = rest.partition(word)
        if not found:
            return None
        around.append(before)
    around.append(rest)
    return around if all(text.count(word) == 1 for word in words) else None


def _cleaning(around: list[str], padded: list[str]) -> list[Clean] | None:
    """What the template does to white space at the ends of each content; None for anything but keeping or stripping.

    Args:
        around: What stands around contents without white space.
        padded: The same around contents that begin with `_LEFT` and end with `_RIGHT`.
    """
    kept = []
    for index, (plain, wide) in enumerate(zip(around, padded, strict=True)):
        tails = (_RIGHT, "") if index else ("",)
        heads = (_LEFT, "") if index + 1 < len(around) else ("",)
        fits = [(tail != "", head != "") for tail in tails for head in heads if tail + plain + head == wide]
        if len(fits) != 1:
            return None
        kept.append(fits[0])
    # The start of content i stands in text i, its end in text i + 1.
    return [_cleaner(kept[index][1], kept[index + 1][0]) for index in range(len(kept) - 1)]


def _cleaner(keeps_left: bool, keeps_right: bool) -> Clean:
    return next(cleaner for cleaner, keeps in _KEEPS.items() if keeps == (keeps_left, keeps_right))


def _unchanged(text: str) -> str:
    return text


# Whether white space before and behind a content is kept.
_KEEPS: dict[Clean, tuple[bool, bool]] = {
    _unchanged: (True, True),
    str.rstrip: (True, False),
    str.lstrip: (False, True),
    str.strip: (False, False),
}


def _place(position: int, around: list[str], words: list[str]) -> _Place | None:
    """A position in the text of the words as a place in the form; None inside a word."""
    reached = 0
    for index, text in enumerate(around):
        if reached <= position <= reached + len(text):
            return _Place(index, position - reached)
        reached += len(text) + (len(words[index]) if index < len(words) else 0)
    return None
