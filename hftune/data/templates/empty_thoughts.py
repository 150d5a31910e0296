"""Empty thoughts: what a template of a hybrid model writes before an answer that has none, as `<think>\\n\\n</think>`.

Served with thinking off, the prompt ends with them: the model never writes them, so they are not trained by default.
"""

from __future__ import annotations

import re
from functools import cached_property

from hftune.data.templates.rendering import Renderer
from hftune.data.templates.spans import Span, SpannedText
from hftune.errors import DataError
from hftune.template_arguments import names_read

MASK, TRAIN, DROP = "mask", "train", "drop"

_FLAG = "--empty_thoughts"
# <think>, </think>, [THINK], <|START_THINKING|>, <seed:think>, ◁think▷, <reasoning>.
_TAG = r"[<\[◁][^<>\[\]◁▷\s]*(?:think|thought|reason)[^<>\[\]◁▷\s]*[>\]▷]"
_OPEN = rf"(?P<open>(?![^>\]▷]*(?:/|end)){_TAG}|<\|channel>thought)"
_CLOSED = re.compile(rf"(?:(?=[^>\]▷]*(?:/|end)){_TAG}|<channel\|>)\s*\Z", re.IGNORECASE)
_EMPTY = re.compile(rf"{_OPEN}\s*(?!(?P=open)){_TAG}|<\|channel>thought\s*<channel\|>", re.IGNORECASE)
_OPENED = re.compile(rf"{_OPEN}\s*\Z", re.IGNORECASE)
_SWITCH = re.compile(r"think|reason", re.IGNORECASE)
_WHITE_SPACE = re.compile(r"\s*")
# Longer than any opening mark with its white space.
_MARK = 64


def opened_thoughts(text: str) -> re.Match[str] | None:
    """The mark (`open`) with which thoughts are opened at the end of a text, and the white space behind it."""
    return _OPENED.search(text[-_MARK:])


def thoughts_of(render: Renderer) -> EmptyThoughts:
    """The finder of empty thoughts of a renderer, made once."""
    found: EmptyThoughts | None = vars(render).get("thoughts")
    if found is None:
        vars(render)["thoughts"] = found = EmptyThoughts(render)
    return found


class EmptyThoughts:
    """Finds empty thoughts in what one template writes."""

    def __init__(self, render: Renderer) -> None:
        self.render = render

    @cached_property
    def off(self) -> list[Renderer]:
        """Renderers with thinking switched off, one for each argument that does it: their prompts end with marks."""
        asked = [{"role": "user", "content": "a"}]
        found = []
        for name in sorted(names_read(self.render.template)):
            if not _SWITCH.search(name) or self.render.arguments.get(name) is False:
                continue
            try:
                other = self.render.given({**self.render.own, name: False})
                prompt = other(asked, add_generation_prompt=True)
                if prompt != self.render(asked, add_generation_prompt=True) and _CLOSED.search(prompt[-_MARK:]):
                    found.append(other)
            except DataError:  # no switch, or a template that wants more than a question
                continue
        return found

    @cached_property
    def tails(self) -> list[str]:
        """What prompts end with where thinking is off: empty thoughts and the white space behind them."""
        asked = [{"role": "user", "content": "a"}]
        tails = []
        for render in (self.render, *self.off):
            try:
                prompt = render(asked, add_generation_prompt=True)
            except DataError:
                continue
            # The last ones: a system text may speak of such marks.
            last = [*_EMPTY.finditer(prompt)][-1:]
            tails += [prompt[one.start() :] for one in last if not prompt[one.end() :].strip()]
        return sorted(set(tails), key=len, reverse=True)

    def end(self, text: str, start: int) -> int:
        """Where empty thoughts at `start`, or opened right before it, end; `start` where there are none."""
        head = text[max(0, start - _MARK) : start]
        opened = opened_thoughts(head)
        # GLM's line break before them is not of the generation prompt.
        begin = start - len(head) + opened.start() if opened else _behind_white_space(text, start)
        found = _EMPTY.match(text, begin)
        if found is None or found.end() <= start:
            return start
        tail = next((tail for tail in self.tails if text.startswith(tail, begin)), None)
        if tail is not None:
            return max(start, begin + len(tail))
        end = found.end()
        # As those write it that write line breaks there; more of them are the answer's own.
        return end + len(text[end : end + 2]) - len(text[end : end + 2].lstrip("\n"))

    def dropped(self, said: SpannedText) -> SpannedText:
        """The text without the empty thoughts with which its spans begin.

        Raises:
            DataError: Their beginning is in the prompt that an answer is given, which cannot be changed.
        """
        parts, spans, reached, removed = [], [], 0, 0
        for span in said.spans:
            end = self.end(said.text, span.start)
            if end > span.start and not _EMPTY.match(said.text, _behind_white_space(said.text, span.start)):
                raise DataError(
                    "the generation prompt of this chat template opens thoughts, so empty ones cannot be dropped",
                    fix=f"Give {_FLAG} mask, or --chat_template_kwargs that switch thinking off.",
                    kind="empty thoughts in the prompt",
                )
            parts.append(said.text[reached : span.start])
            start, removed, reached = span.start - removed, removed + end - span.start, end
            spans.append(Span(start, span.end - removed, span.weight))
        return SpannedText("".join([*parts, said.text[reached:]]), spans) if removed else said


def _behind_white_space(text: str, start: int) -> int:
    found = _WHITE_SPACE.match(text, start)
    return found.end() if found else start
