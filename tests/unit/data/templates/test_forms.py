"""What a template writes around contents, found once for some roles; and where it shows no form."""

from __future__ import annotations

import pytest

from hftune.data.templates.forms import Form, find_forms
from hftune.data.templates.rendering import Renderer
from hftune.data.templates.spans import Span
from tests.unit.data.helpers import CHATML, assistant, make_tokenizer, user

TALK = ("user", "assistant")


def form_of(template: str, roles: tuple[str, ...] = TALK, *, last_turn_only: bool = False) -> Form | None:
    found = find_forms(roles, Renderer(make_tokenizer(template)), last_turn_only=last_turn_only, by_marks=False)
    return found[0] if found else None


def test_a_form_is_filled_with_contents() -> None:
    form = form_of(CHATML)
    assert form is not None
    assert form.around == ["<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n"]
    found = form.fill([user(" a "), assistant("bc", weight=0.5)])
    assert found is not None and found.text == Renderer(make_tokenizer())([user(" a "), assistant("bc")])
    (span,) = found.spans
    assert found.text[span.start : span.end] == "bc<|im_end|>" and span.weight == 0.5


@pytest.mark.parametrize(("trim", "filled"), [("| trim", "a"), ("", " a\t")])
def test_what_becomes_of_white_space(trim: str, filled: str) -> None:
    form = form_of(CHATML.replace("m.content", f"(m.content {trim})"))
    found = None if form is None else form.fill([user(" a\t"), assistant("b")])
    assert found is not None and found.text.startswith(f"<|im_start|>user\n{filled}<|im_end|>")


def test_weight_zero_and_earlier_turns_have_no_span() -> None:
    roles, said = (*TALK, *TALK), [user("a"), assistant("b"), user("c"), assistant("d")]
    form = form_of(CHATML, roles, last_turn_only=True)
    found = None if form is None else form.fill(said)
    assert found is not None
    assert [found.text[span.start : span.end] for span in found.spans] == ["d<|im_end|>"]
    form = form_of(CHATML, roles)
    found = None if form is None else form.fill([*said[:3], {**said[3], "weight": 0}])
    assert found is not None and found.spans == [Span(span.start, span.end) for span in found.spans][:1]


@pytest.mark.parametrize(
    "template",
    [
        CHATML.replace("m.content", "m.content + m.content"),  # each content twice
        CHATML.replace("m.content", "m.content | lower"),  # the words do not occur
        CHATML.replace("m.content", "m.content[2:]"),  # neither kept nor stripped
        "{{ raise_exception('no') }}",
    ],
)
def test_templates_without_a_form(template: str) -> None:
    assert form_of(template) is None
