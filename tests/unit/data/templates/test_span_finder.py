"""What is trained in conversations is what the exact finder finds, on every template and for contents of all kinds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hftune.data.mask import SpanFinder
from hftune.data.rendering import Renderer
from hftune.data.turns import Span, SpannedText, TurnFinder
from hftune.errors import DataError
from tests.unit.data.helpers import CHATML, TEMPLATES, assistant, call, make_tokenizer, slow_if_alike, template, user

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
    finders = {last: SpanFinder(tokenizer, last_turn_only=last) for last in (False, True)}
    for messages in CONVERSATIONS:
        found = exact_spans(tokenizer, messages)
        for last, finder in finders.items():
            expected = found[last]
            if isinstance(expected, str):
                with pytest.raises(DataError) as caught:
                    finder(messages)
                assert caught.value.cause == expected
                continue
            assert finder(messages) == expected


def exact_spans(tokenizer: Any, messages: list[dict[str, Any]]) -> dict[bool, Any]:
    """Text and spans of all turns and of the last one, or what is said against it; rendered once for both."""
    try:
        render = Renderer(tokenizer)
        exact = TurnFinder(render.reads.said(messages, None), render)
    except DataError as error:
        return {False: error.cause, True: error.cause}
    found: dict[bool, Any] = {}
    for last in (False, True):
        try:
            found[last] = SpannedText(exact.text, exact.spans(last_turn_only=last))
        except DataError as error:
            found[last] = error.cause
    return found


PIECES = [*" \n\tab<>|/你🙂", "<think>", "</think>", "<|im_end|>", "HFTUNE0PART"]


TEXT = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@pytest.mark.parametrize("name", ["chatml", "llama3", "qwen3", "phi3", "gemma", "mistral_like"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(TEXT, min_size=2, max_size=5))
def test_any_contents(name: str, contents: list[str]) -> None:
    tokenizer, finder = _cached(name)
    messages = [(user if index % 2 == 0 else assistant)(content) for index, content in enumerate(contents)]
    try:
        exact = TurnFinder(messages, Renderer(tokenizer))
        expected = SpannedText(exact.text, exact.spans())
    except DataError:
        with pytest.raises(DataError):
            finder(messages)
        return
    assert finder(messages) == expected


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


def test_a_turn_is_rendered_twice_where_neighbours_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversation and its prompt; of several turns each has a prompt and an end."""
    tokenizer, renders = make_tokenizer(), []
    write = tokenizer.apply_chat_template
    finder = SpanFinder(tokenizer)
    finder([user("a"), assistant("b")])  # asks what the template reads, and whether it has a generation prompt
    monkeypatch.setattr(
        tokenizer, "apply_chat_template", lambda said, **options: renders.append(1) or write(said, **options)
    )
    for turns in (1, 2, 5):
        renders.clear()
        finder([user("a"), assistant("b")] * turns)
        assert len(renders) == 2 * turns


def test_weights_follow_their_turns() -> None:
    finder = SpanFinder(make_tokenizer())
    turns = [user("a"), assistant("b", weight=0.5), user("c"), assistant("d", weight=0), user("e"), assistant("f")]
    found = finder(turns)
    assert [(found.text[span.start : span.end], span.weight) for span in found.spans] == [
        ("b<|im_end|>", 0.5),
        ("f<|im_end|>", 1.0),
    ]
    # Also on the exact way, which a call takes.
    turns[1] = call("get") | {"weight": 0.25}
    tokenizer = make_tokenizer(template("qwen2_5"))
    assert [span.weight for span in SpanFinder(tokenizer)(turns).spans] == [0.25, 1.0]


def test_all_of_a_conversation_is_one_span() -> None:
    found = SpanFinder(make_tokenizer(), train_everything=True)([user("a"), assistant("b")])
    assert found.spans == [Span(0, len(found.text))]
    tokenizer, tools = make_tokenizer(template("qwen2_5")), [{"type": "function", "function": {"name": "look_up"}}]
    found = SpanFinder(tokenizer, train_everything=True)([user("a"), assistant("b")], tools)
    assert "look_up" in found.text and found.spans == [Span(0, len(found.text))]
