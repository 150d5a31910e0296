"""How a chat template writes thoughts and calls: read off what it makes of an example, not off its name.

Answers with a thought, with text and with a call, all made of words that occur nowhere else, are rendered. What stands
between these words becomes patterns, in the form in which transformers' `tokenizer.get_response_parser` takes them.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hftune.data.messages import Message
from hftune.data.rendering import Renderer
from hftune.data.turns import common_start
from hftune.errors import DataError

ResponseTemplate = dict[str, Any]

THOUGHT, TEXT, CALLS, REST = "reasoning_content", "content", "tool_calls", "rest"
"""The fields of a response template: the rest is what stands outside of all others."""

NAME, KEYS, WORD, NUMBER = "HFTUNENAME", ("HFTUNEKEYA", "HFTUNEKEYB"), "HFTUNEWORD", 7319
_ASKED, _SAID, _THOUGHT = "HFTUNEASKED", "HFTUNESAID", "HFTUNETHOUGHT"
_ARGUMENTS = {KEYS[0]: WORD, KEYS[1]: NUMBER}
_CALL = {"id": "hftune001", "type": "function", "function": {"name": NAME, "arguments": _ARGUMENTS}}
_TYPES = {KEYS[0]: {"type": "string", "description": "a"}, KEYS[1]: {"type": "integer", "description": "b"}}
_PARAMETERS = {"type": "object", "properties": _TYPES, "required": [*KEYS]}
_TOOL = {"type": "function", "function": {"name": NAME, "description": "c", "parameters": _PARAMETERS}}
_NAMED = r"(?P<name>[^\s<>\"'(){}\[\]=,]+)"
_FIRST_TAG = re.compile(r"\s*(<[^<>]+>|\[[^\[\]]+\])")
_TAG = re.compile(r"(<[^<>]+>|\[[^\[\]]+\])\s*$")
_OBJECT = re.compile(rf'\{{\s*"{KEYS[0]}"\s*:\s*"{WORD}"\s*,\s*"{KEYS[1]}"\s*:\s*{NUMBER}\s*\}}')
# What models write that learnt to think without a template that writes thoughts: at the start of an answer only.
_USUAL = {"open_pattern": r"\A\s*<think>", "close_pattern": r"</think>\s*"}
_TEXT = {"content": "text", "content_args": {"strip": False}}
_WHOLE = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_NOWHERE = "\x00hftune\x00"


class WrittenTurns:
    """What a template writes around the parts of an answer.

    Attributes:
        opens: What opens a thought; "" where the template writes none.
        template: The parts as a response template of transformers.
        unread_calls: Whether the template writes calls in a way that this page does not tell.
    """

    def __init__(self, render: Renderer) -> None:
        self.render = render
        self.asked = self._turn(None)
        self.plain = self._turn({"content": _SAID})
        self.thoughtful = self._turn({"content": _SAID, "reasoning_content": _THOUGHT, "thinking": _THOUGHT})
        self.called, self.twice = (self._turn({"content": "", "tool_calls": [_CALL] * count}) for count in (1, 2))
        self.before, _, self.after = self.plain.partition(_SAID)
        self.opens, closes, lead = self._marks()
        marks = {"open_pattern": _begins(self.opens), "close_pattern": _ends(closes)} if self.opens else _USUAL
        fields: dict[str, Any] = {THOUGHT: marks | _TEXT, TEXT: dict(_TEXT)}
        if ends := _FIRST_TAG.match(self.after):
            fields[TEXT]["close_pattern"] = _ends(ends.group())
        if lead:
            fields[TEXT]["open_pattern"] = _begins(lead) + r"\s*"
            # An answer without the mark of a text is shown, too.
            fields[REST] = dict(_TEXT)
        calls = self._calls(lead)
        self.unread_calls = calls is None and NAME in self.called
        if calls:
            fields[CALLS] = calls | {"repeats": True}
        # The part of the answer that the prompt holds is given without what stands before it: there is no anchor.
        self.template: ResponseTemplate = {"start_anchor": _NOWHERE, "fields": fields}
        self.prefilled = re.compile(
            rf"(?:{_loose(self.opens or '<think>')})\s*(?:{_loose(closes or '</think>')}\s*)?\Z"
        )

    def prefix(self, prompt: str) -> str:
        """What a prompt already holds of the answer: `<think>`, say, and `</think>` where thinking is off."""
        found = self.prefilled.search(prompt)
        return found.group() if found else ""

    def _turn(self, said: Message | None) -> str:
        """The text behind the question; "" where the template refuses it."""
        messages: list[Message] = [{"role": "user", "content": _ASKED}]
        messages += [{"role": "assistant", **said}] if said else []
        tools = [_TOOL] if said and "tool_calls" in said else None
        try:
            text = self.render(messages, tools, add_generation_prompt=said is None)
        except DataError:
            return ""
        return text.rpartition(_ASKED)[2]

    def _marks(self) -> tuple[str, str, str]:
        """What opens and what closes a thought, and what opens a text, without white space; "" for nothing."""
        lead = self.before.removeprefix(common_start(self.before, self.asked)).strip()
        before, found, rest = self.thoughtful.partition(_THOUGHT)
        between, said, _ = rest.partition(_SAID)
        if not found or not said:
            return "", "", lead
        opens, closes = "", between.strip()
        if before.startswith(self.asked):
            opens = before.removeprefix(self.asked).strip()
        # The generation prompt may hold it already.
        if not opens and (tag := _TAG.search(before)):
            opens = tag.group(1)
        # An empty thought stands before a text without one, or a mark of texts behind a thought.
        if lead.removeprefix(opens).strip() == closes:
            lead = ""
        return opens, closes.removesuffix(lead), lead

    def _calls(self, lead: str) -> dict[str, Any] | None:
        """How calls are written; None where the template writes none, or in a way that cannot be told."""
        if NAME not in self.called:
            return None
        # With `lead`, text and calls part where the generation prompt ends; else where a text would begin.
        common = common_start(self.called, self.asked if lead else self.before)
        text = self.called[len(common) :].removesuffix(self.after)
        twice = self.twice[len(common) :] if self.twice.startswith(common) else ""
        found = _OBJECT.search(text)
        if found is None:
            return _tagged(text, twice)
        return _whole_json(text, twice, found) or _named_json(text, twice, found)


def _whole_json(text: str, twice: str, found: re.Match[str]) -> dict[str, Any] | None:
    """Calls that are one value of JSON, name and arguments in it, or a list of such."""
    name = text.find(NAME)
    for start in re.finditer(r"[\[{]", text[:name]):
        try:
            _, end = json.JSONDecoder().raw_decode(text, start.start())
        except ValueError:
            continue
        if end < found.end():
            continue
        opens = text[: start.start()].strip()
        # Without a mark only the beginning of the value itself tells a call, and only at the start of an answer.
        begin, closing = _around(opens, text, twice, end)
        begin = begin if opens else rf"\A\s*(?={_loose(text[start.start() : name])})"
        return {"open_pattern": begin, **closing, **_json("{content}")}
    return None


def _named_json(text: str, twice: str, found: re.Match[str]) -> dict[str, Any] | None:
    """Calls with the name before arguments in JSON."""
    before = text[: found.start()]
    opens, named, between = before.rpartition(NAME)
    if not named:
        return None
    begin, closing = _around(opens, text, twice, found.end())
    return {"open_pattern": begin + _NAMED + _loose(between), **closing, **_json(_WHOLE)}


def _tagged(text: str, twice: str) -> dict[str, Any] | None:
    """Calls with a pair of tags for each argument."""
    parts = re.split("|".join((*KEYS, WORD, str(NUMBER))), text)
    if len(parts) != 5 or parts[1].strip() != parts[3].strip():
        return None
    head, middle, between, _, tail = parts
    opens, named, behind = head.rpartition(NAME)
    marker = _same_end(behind, between)
    closing = between.removesuffix(marker).strip()
    if not named or not marker.strip() or not closing or not tail.strip().startswith(closing):
        return None
    end = len(text) - len(tail) + tail.index(closing) + len(closing)
    # The name may stand in what comes before as well.
    begin, closes = _around(opens, text, twice, end)
    start = begin.replace(NAME, r"\S+?") + _NAMED + _loose(behind.removesuffix(marker))
    pair = rf"{_loose(marker)}(?P<key>[^<>\n]+?){_loose(middle)}(?P<value>.*?){_begins(closing)}"
    arguments = {"content": "xml-inline", "content_args": {"tag_pattern": pair}, "transform": _WHOLE}
    return {"open_pattern": start, **closes, **arguments}


def _json(transform: Any) -> dict[str, Any]:
    return {"content": "json", "content_args": {"allow_non_json": True}, "transform": transform}


def _begins(text: str) -> str:
    return rf"\s*{_loose(text.strip())}"


def _ends(text: str) -> str:
    return rf"{_loose(text.strip())}\s*"


def _around(opens: str, text: str, twice: str, end: int) -> tuple[str, dict[str, str]]:
    """What opens a call, and what closes one that ends at `end`; without a mark the end of the answer closes it.

    Marks around all calls (`<calls><call>...</call></calls>`), which do not stand between two, may be missing.
    """
    begin, closes = _begins(opens), text[end:].strip()
    between, more, _ = twice[end:].partition(NAME)
    lead = text[: text.index(NAME)]
    same = _same_end(lead, between)
    own = between.removesuffix(same).strip()
    sure, either = sorted((own, closes), key=len)
    if opens.strip() and more and sure and either.startswith(sure):
        first = lead.removesuffix(same)
        if first.strip() and opens.startswith(first):
            begin = rf"(?:{_begins(first)})?{_begins(opens.removeprefix(first))}"
        rest = either.removeprefix(sure)
        return begin, {"close_pattern": _ends(sure) + (rf"(?:{_ends(rest)})?" if rest else "")}
    return begin, {"close_pattern": _ends(closes)} if closes else {}


def _same_end(left: str, right: str) -> str:
    """What two texts end with alike, from the beginning of a mark: `>` of the mark before is the same by chance."""
    same = common_start(left[::-1], right[::-1])[::-1]
    found = re.search(r"\s*[<\[].*", same, re.DOTALL)
    return found.group() if found else same


def _loose(text: str) -> str:
    """A pattern for a text, whatever white space stands in its place in front, within and behind."""
    return r"\s*".join(re.escape(part) for part in re.split(r"\s+", text))
