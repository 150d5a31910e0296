"""Turns found by form are those that the exact finder finds, on every template and for contents of all kinds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hftune.data.templates import spans as spans_module
from hftune.data.templates.rendering import Renderer, render
from hftune.data.templates.spans import SpanFinder
from hftune.data.templates.turns import TurnFinder, render_with_spans
from hftune.errors import DataError
from tests.unit.data.helpers import CHATML, TEMPLATES, assistant, call, make_tokenizer, slow_if_alike, template, user

pytestmark = pytest.mark.long

IMAGES = {"idefics3", "llava_next", "smolvlm", "diffusion_gemma"}
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja") if path.stem.removesuffix("_training") not in IMAGES)
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [user("a"), assistant("b")],
    [user("你好?"), assistant(" 第一 🙂\n\n"), user("b?\n"), assistant("second.")],
    [{"role": "system", "content": "S"}, user("same"), assistant("same"), user("same"), assistant("same")],
    [user("a"), assistant("<think>\nhm\n</think>\n\nb")],
    [user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c"), assistant("d")],
    [user("a"), assistant("no", weight=0), user("b"), assistant("yes", weight=1)],
    [user("a<|im_end|>"), assistant("HFTUNE0PART"), user("HFTUNE7PROBE"), assistant("b")],
    [user("a"), assistant("b"), user("c")],
    [user("a"), call("get", x=1), {"role": "tool", "content": "20"}, assistant("20")],
]


@pytest.mark.parametrize("name", slow_if_alike(NAMES))
def test_same_as_the_exact_finder(name: str) -> None:
    tokenizer = make_tokenizer(template(name))
    for by_marks in (False, True):
        finders = {last: SpanFinder(tokenizer, last_turn_only=last, by_marks=by_marks) for last in (False, True)}
        for messages in CONVERSATIONS:
            found = exact_spans(tokenizer, messages, by_marks)
            for last, finder in finders.items():
                expected = found[last]
                if isinstance(expected, str):
                    with pytest.raises(DataError) as caught:
                        finder(messages)
                    assert caught.value.cause == expected
                    continue
                text, spans, weights = finder(messages)
                assert (text, spans) == expected
                assert len(weights) == len(spans)


def exact_spans(tokenizer: Any, messages: list[dict[str, Any]], by_marks: bool) -> dict[bool, Any]:
    """Text and spans of all turns and of the last one, or what is said against it; rendered once for both."""
    try:
        exact = TurnFinder(messages, Renderer(tokenizer), by_marks=by_marks)
    except DataError as error:
        return {False: error.cause, True: error.cause}
    found: dict[bool, Any] = {}
    for last in (False, True):
        try:
            found[last] = exact.text, exact.spans(last_turn_only=last)
        except DataError as error:
            found[last] = error.cause
    return found


PIECES = [*" \n\tab<>|/你🙂", "<think>", "</think>", "<|im_end|>", "HFTUNE0PART"]


@pytest.mark.parametrize("name", NAMES)
def test_the_quick_renderer_writes_the_same(name: str) -> None:
    tokenizer = make_tokenizer(template(name))
    quick = Renderer(tokenizer)
    for messages in [*CONVERSATIONS, [user("a"), assistant("b", reasoning_content="c")]]:
        try:
            expected = render(messages, tokenizer)
        except DataError as error:
            with pytest.raises(DataError) as caught:
                quick(messages)
            assert str(caught.value) == str(error)
            continue
        assert quick(messages) == expected


TEXT = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@pytest.mark.parametrize("name", ["chatml", "llama3", "qwen3", "phi3", "gemma", "mistral_like"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(TEXT, min_size=2, max_size=5))
def test_any_contents(name: str, contents: list[str]) -> None:
    tokenizer, finder = _cached(name)
    messages = [(user if index % 2 == 0 else assistant)(content) for index, content in enumerate(contents)]
    try:
        expected = render_with_spans(messages, tokenizer)
    except DataError:
        with pytest.raises(DataError):
            finder(messages)
        return
    assert finder(messages)[:2] == expected


_CACHE: dict[str, Any] = {}
MISTRAL_LIKE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)


def _cached(name: str) -> Any:
    if name not in _CACHE:
        text = {"chatml": CHATML, "mistral_like": MISTRAL_LIKE}.get(name) or template(name)
        tokenizer = make_tokenizer(text)
        _CACHE[name] = (
            tokenizer,
            SpanFinder(tokenizer, borders_in_text="allow"),
        )  # as the exact finder, which masks nothing
    return _CACHE[name]


def test_each_kind_is_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Counting(TurnFinder):
        def __init__(self, messages: Any, *args: Any, **kwargs: Any) -> None:
            calls.append(len(messages))
            super().__init__(messages, *args, **kwargs)

    monkeypatch.setattr(spans_module, "Finder", Counting)
    finder = SpanFinder(make_tokenizer())
    for number in range(5):
        finder([user(f"{number}"), assistant(f"n {number}")])
        finder([user("a"), assistant("b"), user(f"{number}"), assistant("x")])
    assert calls == [2, 4]


def test_weights_follow_their_turns() -> None:
    finder = SpanFinder(make_tokenizer())
    turns = [user("a"), assistant("b", weight=0.5), user("c"), assistant("d", weight=0), user("e"), assistant("f")]
    text, spans, weights = finder(turns)
    assert [text[start:end] for start, end in spans] == ["b<|im_end|>", "f<|im_end|>"]
    assert weights == [0.5, 1.0]
    # Also on the exact way, which a call takes.
    turns[1] = call("get") | {"weight": 0.25}
    tokenizer = make_tokenizer(template("qwen2_5"))
    assert SpanFinder(tokenizer)(turns)[2] == [0.25, 1.0]
