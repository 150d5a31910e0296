"""Spans by a form are those of the exact way, for every template and for contents that templates look at."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hftune.data.mask import SpanFinder
from hftune.data.turns import SpannedText
from hftune.errors import DataError
from tests.unit.data.helpers import CHATML, TEMPLATES, assistant, make_tokenizer, slow_if_alike, template, user

NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
CONTENTS = [
    "eins.",
    "a b\nc",
    "(x",
    "[THINK]a[/THINK]b",
    "<think>\na\n</think>\n\nb",
    "a</think>b",
    "◁think▷a◁/think▷b",
]
CONTENTS += [
    "",
    " a",
    "a\n",
    "\na",
    "HFTUNE0PART",
    "HFTUNE1PART",
    "assistant",
    "<tool_response>3",
    "你好",
    "\n\nUser: a",
]


def conversations(count: int) -> list[list[dict[str, Any]]]:
    """Some of up to three exchanges, with contents and weights that were drawn."""
    draw = random.Random(0)
    found = []
    for _ in range(count):
        turns = [{"role": "system", "content": draw.choice(CONTENTS[:4])}] if draw.random() < 0.3 else []
        for _ in range(draw.randint(1, 3)):
            weight = {"weight": draw.choice([0, 0.5])} if draw.random() < 0.3 else {}
            turns += [user(draw.choice(CONTENTS)), assistant(draw.choice(CONTENTS), **weight)]
        found.append(turns)
    return found


def outcome(find: Any, messages: list[dict[str, Any]]) -> list[SpannedText] | str:
    try:
        return find(messages, None)
    except DataError as error:
        return error.kind or str(error)


# Of an answer without thoughts: marks of empty ones, whose line breaks may be the answer's own; and a last question
# that is written in another way, so that a conversation has several rows.
LAST = "(messages | selectattr('role', 'equalto', 'user') | list)[-1]"
OWN = {
    "empty thoughts": CHATML.replace(
        "m.content", "('<think>\n</think>\n' if m.role == 'assistant' else '') + m.content"
    ),
    "last question": CHATML.replace("m.content", f"('now: ' if m == {LAST} else 'old: ') + m.content"),
}


@pytest.mark.parametrize("name", [*slow_if_alike(NAMES), *OWN])
@pytest.mark.parametrize("settings", [{"rewritten": "split"}, {"last_turn_only": True}], ids=["split", "last"])
def test_spans_are_those_of_the_exact_way(name: str, settings: dict[str, Any]) -> None:
    finder = SpanFinder(make_tokenizer(OWN.get(name) or template(name)), **settings)
    for messages in conversations(40):
        assert outcome(finder._rows, messages) == outcome(finder._exact_rows, messages), messages


def test_a_record_is_rendered_once_where_its_form_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = SpanFinder(make_tokenizer(CHATML))
    said = finder([user("a"), assistant("b"), user("c"), assistant("d")])
    assert [said.text[span.start : span.end] for span in said.spans] == ["b<|im_end|>", "d<|im_end|>"]
    written, render = [], finder.render._written
    monkeypatch.setattr(finder.render.reads, "_written", render, raising=False)
    monkeypatch.setattr(type(finder.render), "_written", lambda self, *args: written.append(args) or render(*args))
    again = finder([user("first"), assistant("second"), user("third"), assistant("fourth", weight=1.0)])
    assert [again.text[span.start : span.end] for span in again.spans] == ["second<|im_end|>", "fourth<|im_end|>"]
    assert len(written) == 1


def test_a_template_that_writes_a_content_twice_has_no_form() -> None:
    twice = "{{ '# ' + messages[0].content + '\n' }}" + CHATML
    finder = SpanFinder(make_tokenizer(twice))
    assert finder.forms.said([user("a"), assistant("b")]) is None
    said = finder([user("a"), assistant("b")])
    assert [said.text[span.start : span.end] for span in said.spans] == ["b<|im_end|>"]


def test_arguments_of_a_record_have_forms_of_their_own() -> None:
    finder = SpanFinder(make_tokenizer("{% if loud %}{{ '!' }}{% endif %}" + CHATML))
    asked = [user("a"), assistant("b")]
    assert [finder(asked, arguments=given).text[:1] for given in (None, {"loud": True}, None)] == ["<", "!", "<"]
