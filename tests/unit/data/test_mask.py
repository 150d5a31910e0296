"""What is trained of a conversation as text, and of its tokens."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hftune.data.mask import SpanFinder, asked_turn, rows_of, span_of_tokens, token_ranges, tokens_of
from hftune.data.rendering import Renderer
from hftune.data.turns import Span, SpannedText, TurnFinder
from hftune.errors import DataError
from tests.unit.data.helpers import CHATML, TEMPLATES, assistant, call, make_tokenizer, slow_if_alike, template, user
from tests.unit.data.tokenizers import TEXTS, TOKENIZERS

BYTES = TOKENIZERS["bytes"].backend_tokenizer


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS.filter(bool), data=st.data())
def test_each_token_belongs_to_the_span_that_it_shares_a_character_with(
    name: str, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = [Span(start, end) for start, end in zip(cuts[::2], cuts[1::2], strict=False)]
    encoding = TOKENIZERS[name].backend_tokenizer.encode(text, add_special_tokens=False)
    expected = [
        max((at for at, span in enumerate(spans) if max(start, span.start) < min(end, span.end)), default=-1)
        for start, end in token_ranges(encoding).tolist()
    ]
    assert span_of_tokens(encoding, spans).tolist() == expected
    if expected and spans and 0 in expected:
        first = [at for at, owner in enumerate(span_of_tokens(encoding, spans[:1])) if owner == 0]
        assert tokens_of(encoding, spans[:1]) == [(first[0], first[-1] + 1)]


def ranged(*offsets: tuple[int, int]) -> Any:
    """An encoding of tokens with these ranges."""
    return type("Ranged", (SimpleNamespace,), {"__len__": lambda self: len(offsets)})(offsets=[*offsets])


def test_by_hand() -> None:
    encoding = ranged((0, 3), (3, 5), (5, 8), (8, 9), (9, 12))
    # A token that reaches into a span is trained.
    assert span_of_tokens(encoding, [Span(4, 7), Span(9, 10)]).tolist() == [-1, 0, 0, -1, 1]
    assert tokens_of(encoding, [Span(4, 7), Span(9, 10)]) == [(1, 3), (4, 5)]
    assert span_of_tokens(ranged(), [Span(0, 1)]).tolist() == []
    cut = BYTES.encode("you you you", add_special_tokens=False)
    assert span_of_tokens(cut, [Span(0, 3), Span(8, 11), Span(11, 20)]).tolist() == [0, -1, 1], "behind the cut"


def test_all_bytes_of_a_character_are_trained() -> None:
    encoding = BYTES.encode("a🙂b", add_special_tokens=False)
    assert span_of_tokens(encoding, [Span(1, 2)]).tolist() == [-1, 0, 0, 0, 0, -1]
    assert tokens_of(encoding, [Span(1, 2)]) == [(1, 5)]


def test_a_token_in_two_spans_belongs_to_the_later() -> None:
    encoding = BYTES.encode("you", add_special_tokens=False)
    assert len(encoding) == 1 and span_of_tokens(encoding, [Span(0, 1), Span(2, 3)]).tolist() == [1]


@pytest.mark.parametrize(
    ("offsets", "ranges"),
    [
        ([(0, 3), (5, 8)], [(0, 3), (5, 8)]),
        ([(1, 1), (1, 3)], [(0, 1), (1, 3)]),
        ([(0, 3), (5, 5), (5, 8)], [(0, 3), (3, 5), (5, 8)]),
        ([(0, 4), (1, 2), (3, 3), (6, 6)], [(0, 4), (1, 2), (3, 3), (4, 6)]),
    ],
)
def test_ranges_of_no_width_are_widened(offsets: list[tuple[int, int]], ranges: list[tuple[int, int]]) -> None:
    """Up to where the ones before reach; a gap before a token with a range of its own is nobody's."""
    assert [tuple(one) for one in token_ranges(ranged(*offsets)).tolist()] == ranges


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
        finder._exact_rows([user("a"), assistant("b")] * turns, None)
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
    found = SpanFinder(make_tokenizer(), train_on_inputs=True)([user("a"), assistant("b")])
    assert found.spans == [Span(0, len(found.text))]
    tokenizer, tools = make_tokenizer(template("qwen2_5")), [{"type": "function", "function": {"name": "look_up"}}]
    found = SpanFinder(tokenizer, train_on_inputs=True)([user("a"), assistant("b")], tools)
    assert "look_up" in found.text and found.spans == [Span(0, len(found.text))]


THOUGHTS = [
    user("a"), assistant("b", reasoning_content="hm"), user("c"), assistant("d", reasoning_content="oh"),
]  # fmt: skip
PLAIN = [user("a"), assistant("b"), user("c"), assistant("d")]
END = "<｜end▁of▁sentence｜>"
FIRST, SECOND = "<bos><｜User｜>a<｜Assistant｜>", f"<bos><｜User｜>a<｜Assistant｜>b{END}<｜User｜>c<｜Assistant｜>"
# As DeepSeek-V3.1: no line breaks around thoughts.
TIGHT = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content.split('</think>')[-1] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant><think>' }}{% endif %}"
)


def rows(text: str, messages: list[dict[str, Any]], **settings: Any) -> list[tuple[str, str]]:
    """(before, trained) of each row with its only turn."""
    finder = SpanFinder(make_tokenizer(text), **{"rewritten": "split", **settings})
    found = finder.rows(messages)
    return [(one.text[: one.spans[0].start], one.text[one.spans[0].start : one.spans[-1].end]) for one in found]


def test_each_turn_behind_the_prompt_of_inference() -> None:
    asked = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    then = f"{asked}b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    first = (asked, "<think>\nhm\n</think>\n\nb<|im_end|>")
    second = (then, "<think>\noh\n</think>\n\nd<|im_end|>")
    assert rows(template("qwen3"), THOUGHTS) == [first, second]
    assert rows(template("qwen3"), THOUGHTS, rewritten="last") == [second]
    assert rows(template("qwen3"), [*THOUGHTS[:3], {**THOUGHTS[3], "weight": 0}]) == [first]
    with pytest.raises(DataError, match=r"rewrites earlier turns: turn 2 \(assistant\)"):
        rows(template("qwen3"), THOUGHTS, rewritten="refuse")


def test_calls_stay_with_the_answer_after_them() -> None:
    call = [{"type": "function", "function": {"name": "get", "arguments": {"x": 1}}}]
    messages = [
        user("a"), assistant("", reasoning_content="hm", tool_calls=call), {"role": "tool", "content": "1"},
        assistant("b", reasoning_content="oh"), user("c"), assistant("d", reasoning_content="so"),
    ]  # fmt: skip
    finder = TurnFinder(messages, SpanFinder(make_tokenizer(template("qwen3"))).render)
    assert [len(row.spans) for row in rows_of(finder)] == [2, 1]


@pytest.mark.parametrize("name", ["deepseekv3", "deepseek_r1_distill", "deepseek_r1_distill_training"])
def test_a_thought_that_the_prompt_opens(name: str) -> None:
    """The row continues the prompt of inference, though the template writes no thoughts in conversations."""
    given = [(f"{FIRST}<think>\n", f"hm\n</think>\n\nb{END}"), (f"{SECOND}<think>\n", f"oh\n</think>\n\nd{END}")]
    assert rows(template(name), THOUGHTS) == given
    assert rows(template(name), THOUGHTS[:2], rewritten="refuse") == given[:1]
    inline = [user("a"), assistant("<think>hm</think>b")]
    assert rows(template("deepseekv3"), inline) == given[:1]
    empty = "\n</think>\n\n"
    asked = [(f"{FIRST}<think>\n{empty}", f"b{END}"), (f"{SECOND}<think>\n{empty}", f"d{END}")]
    assert rows(template(name), PLAIN) == asked
    # Rows follow the turns that are trained.
    assert rows(template(name), [*PLAIN[:3], {**PLAIN[3], "weight": 0}]) == asked[:1]
    assert rows(template(name), [PLAIN[0], {**PLAIN[1], "weight": 0}, *PLAIN[2:]]) == asked[1:]
    trained = [(f"{FIRST}<think>\n", f"{empty}b{END}"), (f"{SECOND}<think>\n", f"{empty}d{END}")]
    assert rows(template(name), PLAIN, empty_thoughts="train") == trained
    with pytest.raises(DataError, match="opens thoughts, so empty ones cannot be dropped"):
        rows(template(name), PLAIN, empty_thoughts="drop")


def test_empty_thoughts_are_dropped_from_every_turn() -> None:
    text = TIGHT.replace("+ m.content", "+ ('<think></think>' if m.role == 'assistant' else '') + m.content")
    finder = SpanFinder(make_tokenizer(text.replace("<assistant><think>", "<assistant>")), empty_thoughts="drop")
    said = finder(PLAIN)
    assert said.text == "<user>a<end><assistant>b<end><user>c<end><assistant>d<end>"
    assert [said.text[span.start : span.end] for span in said.spans] == ["b<end>", "d<end>"]


def test_line_breaks_are_those_of_the_prompt() -> None:
    assert rows(TIGHT, THOUGHTS[:2]) == [("<user>a<end><assistant><think>", "hm</think>b<end>")]
    assert rows(TIGHT, PLAIN[:2]) == [("<user>a<end><assistant><think></think>", "b<end>")]
    square = TIGHT.replace("<think>", "[THINK]").replace("</think>", "[/THINK]")
    assert rows(square, THOUGHTS[:2]) == [("<user>a<end><assistant>[THINK]", "hm[/THINK]b<end>")]


def test_another_beginning_is_refused() -> None:
    other = TIGHT.replace("'<assistant><think>'", "'<assistant>Sure: <think>'")
    for text in (other, TIGHT.replace("'<assistant><think>'", "'<assistant><note>'")):
        with pytest.raises(DataError, match="what would be trained is not what the model is asked"):
            rows(text, PLAIN[:2])
    # Thoughts in two places: one of them would be lost.
    with pytest.raises(DataError, match="drops the reasoning"):
        rows(TIGHT, [user("a"), assistant("<think>one</think>b", reasoning_content="two")])


@pytest.mark.parametrize(("earlier", "why"), [(True, ", as it rewrites earlier turns"), (False, "")])
def test_whether_a_turn_is_asked_otherwise_since_another_follows(earlier: bool, why: str) -> None:
    finder: Any = SimpleNamespace(
        text="<user>a<end>abcdefghijklmnopqrstuvwxyz", beginning=lambda index, prompt: "<user>a<end>Sure: ",
        _is_earlier=lambda index: earlier,
    )  # fmt: skip
    said = str(TurnFinder._inexact(finder, 1, 12))
    assert "turn 2 (assistant) with 'Sure: ' where it writes 'abcdefghijklmnopqrst' in" in said
    assert f"in the conversation{why}: what would be trained" in said


# Thoughts before a call are shown until the answer is written.
DROPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and not messages[loop.index:] | selectattr('role', 'eq', 'assistant') | list %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SAID = [user("Q"), {**call("get", x=1), "reasoning_content": "so"}, {"role": "tool", "content": "7"}]


def finder(text: str, *messages: dict[str, Any]) -> TurnFinder:
    return TurnFinder([*messages], Renderer(make_tokenizer(text)))


def test_the_prompt_and_behind_it_the_turn() -> None:
    for answer in (assistant("A"), assistant("A", reasoning_content="oh"), assistant("A", weight=0.5)):
        part = finder(DROPPING, *SAID, answer)
        found = asked_turn(part)
        assert found is not None
        text, (span,) = found.text, found.spans
        prompt = part.renderer(SAID, add_generation_prompt=True)
        assert "<think>so</think>" in prompt and "so" not in part.text
        thoughts = "<think>oh</think>" if "reasoning_content" in answer else ""
        assert text == f"{prompt}{thoughts}A<|im_end|>\n"
        assert text[span.start : span.end] == f"{thoughts}A<|im_end|>" and span.start == len(prompt)
        assert span.weight == answer.get("weight", 1.0)


def test_none_where_the_turn_is_written_in_another_way() -> None:
    # Behind a result it is another text than behind a question.
    other = DROPPING.replace("{{ m.content }}", "{% if loop.index > 3 %}late {% endif %}{{ m.content }}")
    assert asked_turn(finder(other, *SAID, assistant("A"))) is None
    # No generation prompt, no question, and a turn that is lost.
    assert asked_turn(finder(DROPPING.split("{% if add_generation")[0], *SAID, assistant("A"))) is None
    assert asked_turn(finder(DROPPING, SAID[1], SAID[2], assistant("A"))) is None
    assert asked_turn(finder(template("qwen2_5"), *SAID[:1], assistant("A", reasoning_content="oh"))) is None


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
