"""Spans of the assistant's turns on real templates, against literal text and against TRL's own markers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.data.mask import SpanFinder
from hftune.data.rendering import Renderer
from hftune.data.turns import Span, TurnFinder, _parts
from hftune.errors import DataError
from tests.unit.data.helpers import CHATML, assistant, call, make_tokenizer, render_with_spans, template, user

SYSTEM = {"role": "system", "content": "Be brief."}
RESULT = {"role": "tool", "name": "get", "content": '{"t": 20}'}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer", "description": "e"}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "get", "description": "d", "parameters": SCHEMA}}]
TWO = [user("你好?"), assistant("First 🙂."), user("b?"), assistant("第二\n\n done")]
WITH_CALL = [user("a?"), call("get", x=1), RESULT, assistant("20"), user("b?"), assistant("bye")]
THOUGHT = "<think>\nhm\n</think>\n\n"


def spoken(name: str | None, messages: list[dict[str, Any]], text: str | None = None, **settings: Any) -> list[str]:
    """The spans of a conversation as strings, on one of TRL's templates or on the one given."""
    tokenizer = make_tokenizer(template(name) if name else text)
    rendered, spans = render_with_spans(messages, tokenizer, **settings)
    return [rendered[start:end] for start, end in spans]


@pytest.mark.parametrize(
    ("name", "messages", "expected"),
    [
        ("qwen2_5", TWO, ["First 🙂.<|im_end|>", "第二\n\n done<|im_end|>"]),
        ("qwen2_5", [SYSTEM, *TWO], ["First 🙂.<|im_end|>", "第二\n\n done<|im_end|>"]),
        ("llama3", [SYSTEM, *TWO], ["First 🙂.<|eot_id|>", "第二\n\n done<|eot_id|>"]),
        ("gemma", TWO, ["First 🙂.<end_of_turn>", "第二\n\n done<end_of_turn>"]),
        # The last turn only is closed with EOS, or another token.
        ("phi3", TWO, ["First 🙂.<|end|>", "第二\n\n done<|end|>\n<|endoftext|>"]),
        ("gptoss", TWO,
         ["<|channel|>final<|message|>First 🙂.<|end|>", "<|channel|>final<|message|>第二\n\n done<|return|>"]),
        # Its generation prompt opens a thought, which a turn without one does not have.
        ("deepseekv3", TWO, ["First 🙂.<｜end▁of▁sentence｜>", "第二\n\n done<｜end▁of▁sentence｜>"]),
        # No terminator at all.
        # An empty thought is of the prompt: up to where GLM's own ends when thinking is off.
        ("glm4moe", TWO, ["\nFirst 🙂.", "\n第二\n\n done"]),
        # One before the last turn, none before earlier ones.
        ("qwen3", TWO, ["First 🙂.<|im_end|>", "第二\n\n done<|im_end|>"]),
        ("qwen3", [user("a"), assistant(THOUGHT + "b")], [THOUGHT + "b<|im_end|>"]),
        ("qwen3", [user("a"), assistant("b", reasoning_content="hm")], [THOUGHT + "b<|im_end|>"]),
        # A conversation that the assistant opens, two turns in a row, trailing user turn, white space kept in a turn.
        ("qwen2_5", [assistant("Hi"), *TWO[:2]], ["Hi<|im_end|>", "First 🙂.<|im_end|>"]),
        ("qwen2_5", [user("a"), assistant("b"), assistant("c")], ["b<|im_end|>", "c<|im_end|>"]),
        ("qwen2_5", TWO[:3], ["First 🙂.<|im_end|>"]),
        ("qwen2_5", [user("a"), assistant(" b \n")], [" b \n<|im_end|>"]),
        ("llama3", [user("a"), assistant(" b \n")], ["b<|eot_id|>"]),
        ("qwen2_5", [user("same"), assistant("same"), user("same"), assistant("same")], ["same<|im_end|>"] * 2),
        ("qwen3", [user("same"), assistant("same"), user("same"), assistant("x")],
         ["same<|im_end|>", "x<|im_end|>"]),
        ("qwen2_5", [user("a"), assistant("b", weight=0), user("c"), assistant("d", weight=1)], ["d<|im_end|>"]),
    ],
)  # fmt: skip
def test_spans(name: str, messages: list[dict[str, Any]], expected: list[str]) -> None:
    assert spoken(name, messages) == expected


NO_PROMPT = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST] "
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
CLOSING = NO_PROMPT.replace("m.content", "m.content + ('' if m.content.endswith('!') else '[END]')")
OPENED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BARE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("text", "messages", "expected"),
    [
        (NO_PROMPT, TWO, ["First 🙂.", "第二\n\n done"]),
        # The user says what the template writes before the assistant.
        (NO_PROMPT, [user("assistant: b"), assistant("b")], ["b"]),
        (LLAMA2, TWO, ["First 🙂.<|endoftext|>", "第二\n\n done<|endoftext|>"]),
        # No terminator: white space at the end is the turn's own.
        (BARE, [user("a"), assistant("b \n"), user("c"), assistant("d\n")], ["b \n", "d\n"]),
        # What closes a turn depends on what it says.
        (CLOSING, [user("a!"), assistant("b!"), user("c"), assistant("d")], ["b!", "d[END]"]),
    ],
)
def test_templates_without_a_generation_prompt(text: str, messages: list[dict[str, Any]], expected: list[str]) -> None:
    assert spoken(None, messages, text) == expected


@pytest.mark.parametrize(
    ("name", "messages", "words"),
    [
        ("qwen3", [user("a"), assistant(THOUGHT + "b"), user("c"), assistant("d")],
         ["rewrites earlier turns", "turn 2", "reasoning", "last turn only", "split", "--chat_template"]),
        ("deepseek_r1_distill", [user("a"), assistant(THOUGHT + "b")], ["drops the reasoning of turn 2"]),
        ("qwen2_5", [user("a"), assistant("b", reasoning_content="hm")], ["drops the reasoning of turn 2"]),
        ("llama3", [user("a"), call("get", x=1)], ["drops the function call of turn 2"]),
        ("llama3", [user("a"), {**call("get", x=1), "content": "said"}], ["drops the function call of turn 2"]),
        ("qwen3_5_nothink", [user("a"), assistant(THOUGHT + "b")], ["its own generation prompt", "turn 2"]),
        ("gemma", [SYSTEM, *TWO], ["refuses this conversation", "System role not supported"]),
        ("gemma", [user("a"), user("b"), assistant("c")], ["refuses", "user user assistant", "alternate"]),
        ("deepseekv3", [user("a"), call("get", x=1)], ["refuses", "concatenate"]),
        ("smolvlm", TWO, ["drops the content"]),
        # Nothing is there that could be trained.
        (None, [user("a"), assistant("")], ["turn 2 (assistant) cannot be located exactly"]),
    ],
)  # fmt: skip
def test_refused(name: str | None, messages: list[dict[str, Any]], words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        spoken(name, messages, BARE)
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)
    assert caught.value.fix


def test_turns_are_never_taken_from_elsewhere() -> None:
    """A template that writes earlier answers in another case: the content is nowhere, so it must be refused."""
    shouting = (
        "{% for m in messages %}{{ '<' + m.role + '>' }}"
        "{{ (m.content if loop.last else m.content | upper) + '\n' }}{% endfor %}"
    )
    with pytest.raises(DataError, match="rewrites earlier turns"):
        spoken(None, [user("b"), assistant("b"), user("c"), assistant("d")], shouting)


def test_an_untrained_end_of_text_behind_a_turn_is_refused() -> None:
    """A template without any terminator, and a user who writes one."""
    with pytest.raises(DataError, match=r"writes <\|endoftext\|> behind a turn"):
        spoken(None, [user("a"), assistant("b"), user("<|endoftext|>c"), assistant("d")], BARE)
    with pytest.raises(DataError, match=r"writes <\|endoftext\|> behind a turn"):
        spoken(None, [user("a"), assistant("b"), user("\n <|endoftext|>c"), assistant("d")], BARE)
    without = make_tokenizer(BARE)
    without.eos_token = None
    text, spans = render_with_spans([user("a"), assistant("b"), user("None"), assistant("d")], without)
    assert [text[start:end] for start, end in spans] == ["b", "d"]


def finder(text: str, messages: list[dict[str, Any]]) -> TurnFinder:
    return TurnFinder(messages, Renderer(make_tokenizer(text)))


def test_white_space_of_a_content_is_its_own_up_to_where_it_ends_last() -> None:
    """The same words may stand in the thoughts before it."""
    found = finder(BARE, [user("a"), assistant("b \n")])
    found.text = "xb \nyb \n  "
    assert found._trimmed(1, 0, len(found.text)) == len("xb \nyb \n")
    found.text = "xb \ny  "
    assert found._trimmed(1, 0, len(found.text)) == len("xb \ny")
    found.text = "b \n<|im_end|>  "
    assert found._trimmed(1, 0, len(found.text)) == len("b \n<|im_end|>")
    assert finder(BARE, [user("a"), assistant(" ")])._trimmed(1, 0, 2) == 1, "white space alone is nowhere"


@pytest.mark.parametrize(
    ("text", "after", "closes"),
    [
        (BARE, "next words", ""),
        (template("qwen2_5"), "<|im_end|>\n<|im_start|>user", "<|im_end|>"),
        (template("qwen2_5"), "<|eot_id|>", ""),
        (template("phi3"), "<|end|>\n<|user|>\nb", "<|end|>"),
        (CLOSING, "[END]\nuser: b", "[END]"),
        (CLOSING + "{{ eos_token + '\n' }}", "[END]\nuser: b", "[END]"),
        # Only the opener of the next turn, whoever speaks.
        (OPENED, "<|im_start|>user\nb", ""),
    ],
)
def test_what_closes_a_turn(text: str, after: str, closes: str) -> None:
    found = finder(text, [user("a"), assistant("b")])
    upto = [user("a"), {"role": "assistant", "content": found.probe}]
    assert found._terminator(upto, after) == len(closes)


def test_a_prompt_without_thoughts_is_exact_if_it_is_all_that_is_written() -> None:
    other = CHATML.replace("assistant\n", "assistant\nSure: ")
    found = finder(other, [user("a"), assistant("b")])
    start = found.text.rindex("b")
    assert not found.text.startswith(str(found.beginning(1, prompt=True)))
    found.tools = TOOLS
    asked: dict[str, Any] = {f"{([user('a')], TOOLS)}": found.text[:start]}
    for prompts, exact in (([asked], True), ([{}, asked], True), ([{}], False), ([], False)):
        off = [SimpleNamespace(prompt=lambda *given, known=known: known.get(str(given))) for known in prompts]
        found.thoughts = SimpleNamespace(off=off)
        assert found._is_exact(1, start) is exact


def test_a_part_is_found_as_the_whole_is() -> None:
    renderer = Renderer(make_tokenizer(template("qwen2_5")))
    whole = TurnFinder(WITH_CALL, renderer, TOOLS, empty_thoughts="train")
    part = whole.upto(2)
    assert part.messages == WITH_CALL[:2] and part.renderer is renderer and part.tools is TOOLS
    assert part.empty_thoughts == "train"
    assert part.beginnings is whole.beginnings, "rendered once"


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (assistant(" b \n"), [("content", "b")]),
        (assistant(""), []),
        (assistant("<think>\nhm\n</think>\n\nb"), [("reasoning", "hm"), ("content", "b")]),
        (assistant("hm</think>b"), [("reasoning", "hm"), ("content", "b")]),
        (assistant("<think>hm"), [("content", "<think>hm")]),
        # Of several marks the last ones.
        (assistant("<think>one</think>two</think>b"), [("reasoning", "one</think>two"), ("content", "b")]),
        (assistant("<think>one<think>two</think>b"), [("reasoning", "two"), ("content", "b")]),
        (assistant("b", reasoning_content=" so "), [("reasoning", "so"), ("content", "b")]),
        (assistant("b", reasoning_content=None, tool_calls=None), [("content", "b")]),
        ({**call("get", x=1), "content": "b"}, [("content", "b"), ("function call", "get")]),
        ({**call("get"), "tool_calls": [*call("get")["tool_calls"], *call("put")["tool_calls"]]},
         [("function call", "get"), ("function call", "put")]),
    ],
)  # fmt: skip
def test_what_a_turn_says(message: dict[str, Any], parts: list[tuple[str, str]]) -> None:
    assert _parts(message) == parts


def test_the_probe_is_no_part_of_the_text() -> None:
    assert finder(BARE, [user("a"), assistant("b")]).probe == "HFTUNE7PROBE"
    assert finder(BARE, [user("HFTUNE7PROBE"), assistant("HFTUNE8PROBE")]).probe == "HFTUNE9PROBE"


def test_what_nobody_asks_for_is_off() -> None:
    found = finder(BARE, [user("a"), assistant("b")])
    assert found.empty_thoughts == "mask"
    assert found.trained_turns() == [1]
    spans = SpanFinder(make_tokenizer(BARE))
    assert not (spans.train_on_inputs or spans.last_turn_only)
    assert (spans.guard.mode, spans.rewritten) == ("split", "keep") and Span(0, 1).weight == 1.0


def test_turns_that_touch_do_not_overlap() -> None:
    assert spoken(None, [user("a"), assistant("b"), assistant("c")], BARE) == ["b", "c"]
    with pytest.raises(DataError, match="two turns overlap"):
        finder(BARE, [user("a"), assistant("b")]).checked([Span(0, 2), Span(1, 3)])
