"""The quick way to the spans of a conversation: what a template writes around contents, found once for some roles.

The way that defines them, `turns.TurnFinder`, renders a conversation several times. But conversations of plain text
with the same roles differ in their contents only. So one conversation of these roles, its contents replaced by words
that occur nowhere else, is analysed by `TurnFinder`; what stands around those words is the *form*. A record is rendered
once, and if that text is, character for character, the form filled with the record's contents, its turns are where they
are in the form. A record that differs (reasoning that a template drops, contents that it rewrites) goes the long way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.records.messages import Message
from hftune.data.templates.empty_thoughts import MASK, begins_with_mark
from hftune.data.templates.opened_thoughts import Opening
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.rewritten import KEEP, ExactRow, rows_of
from hftune.data.templates.spans import Span, SpannedText
from hftune.data.templates.turns import TurnFinder, common_start
from hftune.errors import DataError
from hftune.template_arguments import TemplateArguments

Clean = Callable[[str], str]
"""What a template does to the white space at the ends of a content."""

_LEFT, _RIGHT = " \n", "\n "


@dataclass(frozen=True, slots=True)
class Place:
    """A character position in a form: so many characters into the text before message `index` (or after the last)."""

    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class Form:
    """What a template writes around the contents of conversations with the same roles.

    `around` has one text more than there are messages; `clean` says what the template does to each content; `turns` are
    the trained turns: message index, start and end. `guards` are first characters of a content (by message index) that
    could make a template's own generation prompt reach into it, as `<think>` does. With an `opening` the rest is
    about what the template writes, which is without it.
    """

    around: list[str]
    clean: list[Clean]
    turns: list[tuple[int, Place, Place]]
    guards: dict[int, str]
    opening: Opening | None = None

    def fill(self, messages: list[Message]) -> SpannedText | None:
        """The text with the contents of these messages, and its spans; None for contents under a guard."""
        parts, starts, reached = [self.around[0]], [0], len(self.around[0])
        for index, (clean, message, following) in enumerate(zip(self.clean, messages, self.around[1:], strict=True)):
            content = clean(message["content"])
            # Here the generation prompt would reach into the content; only the exact way can tell how far.
            if index in self.guards and content[:1] in self.guards[index]:
                return None
            # Marks of thoughts in a content may join those that the template writes before it.
            if message["role"] == "assistant" and begins_with_mark(content):
                return None
            reached += len(content)
            starts.append(reached)
            reached += len(following)
            parts += (content, following)
        spans = [
            Span(starts[start.index] + start.offset, starts[end.index] + end.offset, weight)
            for turn, start, end in self.turns
            if (weight := float(messages[turn].get("weight", 1.0)))
        ]
        return SpannedText("".join(parts), spans)


class WordRenderer(Renderer):
    """Renders the conversations by which forms are found, each once.

    A form of four turns asks for the beginnings that a form of two has asked for, as the words of a turn are the same
    in all forms.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, arguments: TemplateArguments | None = None) -> None:
        super().__init__(tokenizer, arguments)
        # Bounded, for data whose every record has roles of its own.
        self.rendered = lru_cache(maxsize=1024)(self._render)

    def __call__(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation of plain messages without tools; errors as `Renderer`'s, which are not kept."""
        assert tools is None, "forms are of conversations without tools"
        said = tuple([(message["role"], message["content"]) for message in messages])
        return self.rendered(said, add_generation_prompt)

    def _render(self, said: tuple[tuple[str, str], ...], add_generation_prompt: bool) -> str:
        messages = [{"role": role, "content": content} for role, content in said]
        return super().__call__(messages, add_generation_prompt=add_generation_prompt)


def find_forms(
    roles: tuple[str, ...],
    render: Renderer,
    *,
    last_turn_only: bool,
    by_marks: bool,
    empty_thoughts: str = MASK,
    rewritten: str = KEEP,
) -> list[Form] | None:
    """The forms of the rows of conversations with these roles; None where the template does not show them.

    Args:
        render: A `WordRenderer` where the forms of more than one sequence of roles are wanted.
    """
    # Digits between letters: no template changes their case or trims them, and none is the beginning of another.
    words = [f"HFTUNE{number}PART" for number in range(len(roles))]
    try:
        # By the exact way, so a form never says more than that would for these very words.
        finder = TurnFinder(_conversation(roles, words), render, by_marks=by_marks, empty_thoughts=empty_thoughts)
        rows = rows_of(finder, last_turn_only=last_turn_only, rewritten=rewritten)
        forms = [_form(row, roles[: row.count], words[: row.count], render) for row in rows]
    except DataError:
        return None
    known = [form for form in forms if form is not None]
    return known if len(known) == len(forms) else None


def _form(row: ExactRow, roles: tuple[str, ...], words: list[str], render: Renderer) -> Form | None:
    """The form of one row of the conversation of words."""
    if row.text is not None:
        return None
    finder, spans = row.finder, row.spans
    # Once more with white space around the words, to see whether the template strips contents.
    padded = render(_conversation(roles, [f"{_LEFT}{word}{_RIGHT}" for word in words]))
    around, around_padded = _split(finder.text, words), _split(padded, words)
    if around is None or around_padded is None:
        return None
    clean = _cleaning(around, around_padded)
    places, turns = [], row.turns
    for turn, span in zip(turns, spans, strict=True):
        start, end = _place(span.start, around, words), _place(span.end, around, words)
        # A bound inside a content: how far in is the content's own business.
        if start is None or end is None:
            return None
        places.append((turn, start, end))
    return None if clean is None else Form(around, clean, places, _guards(finder, words, turns), row.opening)


def _guards(finder: TurnFinder, words: list[str], turns: list[int]) -> dict[int, str]:
    """First characters that would change what the exact finder, which compares beginnings of the text, finds."""
    # Where the exact finder compares beginnings, a content that starts with the template's next characters changes its
    # answer.
    begins = {finder.text.index(word): index for index, word in enumerate(words)}
    guards: dict[int, str] = {}
    for turn in turns:
        others = finder.prompts_without_thoughts(turn) if turn else []
        for beginning in (finder.beginning(turn, prompt=True), finder.beginning(turn + 1), *others):
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
    # A template that writes a content twice (as a title, say) has no form.
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
        # With text such as "\n" around contents it cannot be told whose line break it is.
        if len(fits) != 1:
            return None
        kept.append(fits[0])
    # The start of content i stands in text i, its end in text i + 1.
    return [_CLEANERS[kept[index][1], kept[index + 1][0]] for index in range(len(kept) - 1)]


def _unchanged(text: str) -> str:
    return text


# By whether white space before and behind a content is kept.
_CLEANERS: dict[tuple[bool, bool], Clean] = {
    (True, True): _unchanged,
    (True, False): str.rstrip,
    (False, True): str.lstrip,
    (False, False): str.strip,
}


def _place(position: int, around: list[str], words: list[str]) -> Place | None:
    """A position in the text of the words as a place in the form; None inside a word."""
    reached = 0
    for index, text in enumerate(around):
        if reached <= position <= reached + len(text):
            return Place(index, position - reached)
        reached += len(text) + (len(words[index]) if index < len(words) else 0)
    return None
