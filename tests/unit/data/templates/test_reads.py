"""What templates read of messages, and what becomes of thoughts and calls for them."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.data.rendering import Reads, Renderer
from tests.unit.data.helpers import CHATML, assistant, make_tokenizer, template, user

FUNCTION = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
OTHER = {"type": "function", "function": {"name": "g", "arguments": {}}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAMED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.NAME %}{{ '[' + m.NAME + ']' }}{% endif %}{{ m.content }}{% endfor %}"
)


def reads(text: str) -> Reads:
    return Renderer(make_tokenizer(text)).reads


def plain(text: str) -> Reads:
    """By Jinja alone: transformers 5.23 gives thoughts to templates under two names itself, older ones do not."""
    from jinja2 import Template

    return Reads(lambda messages: Template(text).render(messages=messages), text)


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_have_the_name_that_the_template_reads(name: str) -> None:
    found = plain(NAMED.replace("NAME", name))
    assert found.thoughts == name
    said = [user("Q"), assistant("A", reasoning_content="so", weight=0.5)]
    (asked, made) = found.named(said)
    assert asked == user("Q") and made == assistant("A", weight=0.5) | {name: "so"}
    assert found.named(said[:1]) == said[:1]


@pytest.mark.parametrize(
    ("name", "lifts", "calls", "one_call"),
    [
        ("qwen3", False, True, False),
        ("glm4moe", False, True, False),
        ("gptoss", True, True, True),
        ("qwen2_5", False, True, False),
        ("gemma", False, False, False),
    ],
)
def test_real_templates(name: str, lifts: bool, calls: bool, one_call: bool) -> None:
    found = reads(template(name))
    assert (found.lifts, found.calls, found.one_call) == (lifts, calls, one_call)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("<think>\nso\n</think>\n\nA", assistant("A", reasoning_content="so")),
        ("so\n</think>\n\nA", assistant("A", reasoning_content="so")),
        ("<think>\n\n</think>\n\nA", assistant("A")),
        ("I <think> so</think>A", assistant("I <think> so</think>A")),
        ("<think>so</think>", assistant("<think>so</think>")),
        ("A", assistant("A")),
    ],
)
def test_thoughts_in_texts(text: str, made: dict[str, Any]) -> None:
    said = [user("<think>a</think>b"), assistant(text)]
    assert reads(template("gptoss")).said(said, None) == [said[0], made]
    # Their templates find them, or know of none.
    for other in (template("qwen3"), template("qwen2_5"), CHATML):
        assert reads(other).said(said, None) == said


def test_calls_in_texts_for_templates_that_know_calls() -> None:
    said = [user("Q"), assistant('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>')]
    assert reads(template("qwen2_5")).said(said, TOOLS)[1] == assistant("", tool_calls=[FUNCTION])
    assert reads(CHATML).said(said, TOOLS) == said
    assert reads(template("qwen2_5")).said(said, None) == said


def result(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


def test_several_calls_of_a_message_for_a_template_that_writes_one() -> None:
    both = assistant("", tool_calls=[FUNCTION, OTHER], reasoning_content="so", weight=0.5)
    said = [user("Q"), both, result("1"), result("2"), assistant("A")]
    one = [
        user("Q"),
        assistant("", tool_calls=[FUNCTION], reasoning_content="so", weight=0.5),
        result("1"),
        assistant("", tool_calls=[OTHER], weight=0.5),
        result("2"),
        assistant("A"),
    ]
    found = reads(template("gptoss"))
    assert found.said(said, TOOLS) == one
    assert reads(template("qwen3")).said(said, TOOLS) == said
    # By their ids, whatever the order; and only where each has a result.
    called = [{**FUNCTION, "id": "a"}, {**OTHER, "id": "b"}]
    swapped = [assistant("", tool_calls=called), result("2", tool_call_id="b"), result("1", tool_call_id="a")]
    assert [message["content"] for message in found.said(swapped, TOOLS)] == ["", "1", "", "2"]
    # LLaMA-Factory's: both in one text.
    listed = [both, result('[{"name": "f", "content": "ü"}, {"name": "g", "content": 2}]')]
    assert [message["content"] for message in found.said(listed, TOOLS)] == [
        "",
        '[{"name": "f", "content": "ü"}]',
        "",
        '[{"name": "g", "content": 2}]',
    ]
    for rest in (
        [],
        [result("1")],
        [result('[{"name": "f"}, {"name": "h"}]')],
        [result("1"), result("2"), result("3")],
        [result("1"), user("Q")],
    ):
        kept = [user("Q"), both, *rest]
        assert found.said(kept, TOOLS) == kept
