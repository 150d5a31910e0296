"""Conversations as the template writes them, what it reads and refuses."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.chat_templates import GENERAL, shipped, text_of, tokens_of
from hftune.data import rendering
from hftune.data.mask import SpanFinder
from hftune.data.rendering import Reads, Renderer, require_chat_template
from hftune.errors import DataError
from tests.unit.data.helpers import CHATML, assistant, make_tokenizer, render_with_spans, template, user

TALK = [user("a"), assistant("bc")]


def test_text_with_and_without_the_generation_prompt() -> None:
    render = Renderer(make_tokenizer())
    said = "<|im_start|>user\na<|im_end|>\n"
    assert render(TALK[:1]) == said
    assert render(TALK[:1], add_generation_prompt=True) == f"{said}<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system turn') }}", r"refuses this conversation \(user assistant\): no system turn"),
        ("{{ 'a' + 7 }}", "refuses this conversation"),
        ("{{ 1 / 0 }}", "refuses this conversation .*division by zero"),
        ("{{ range(10 ** 9) | list }}", "refuses this conversation .*Range too big"),
        ("{{ '{} {}'.format(1) }}", "refuses this conversation"),
        ("{{ 'a'.index('b') }}", "refuses this conversation"),
        (f"{{{{ {'(' * 5000}1{')' * 5000} }}}}", "refuses this conversation .*recursion"),
        ("{{ 'a' + cls_token }}", "refuses this conversation .*cls_token"),
    ],
)
def test_what_a_template_refuses(template: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Renderer(make_tokenizer(template))(TALK)


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
    for rest in ([], [result("1")], [result("1"), result("2"), result("3")], [result("1"), user("Q")]):
        kept = [user("Q"), both, *rest]
        assert found.said(kept, TOOLS) == kept


SIGNED = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + (sign or '') + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
SAID = [user("a"), assistant("b")]


def trained(finder: SpanFinder, **arguments: str) -> str:
    (row,) = finder.rows(SAID, None, arguments)
    return row.text[row.spans[0].start : row.spans[0].end]


def test_each_record_is_written_with_its_own() -> None:
    finder = SpanFinder(make_tokenizer(SIGNED))
    assert trained(finder, sign="!") == "b!<end>" and trained(finder, sign="?") == "b?<end>"
    assert trained(finder) == "b<end>", "nothing stays of the others"
    one, other = finder.given({"sign": "!"}), finder.given({"sign": "?"})
    assert one.render is finder.given({"sign": "!"}).render and one.render is not other.render


def test_of_many_sets_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MOST_SETS", 3)
    finder = SpanFinder(make_tokenizer(SIGNED))
    for number in range(10):
        assert trained(finder, sign=str(number)) == f"b{number}<end>"
        assert 1 <= len(finder.render.others) <= 3


def refused(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]]) -> DataError:
    with pytest.raises(DataError) as caught:
        render_with_spans(messages, tokenizer)
    return caught.value


def test_chatml_is_roles_and_texts() -> None:
    """Written out by hand."""
    tokenizer = make_tokenizer(text_of("chatml"))
    written = Renderer(tokenizer)([{"role": "system", "content": "S"}, user("a\n")], add_generation_prompt=True)
    assert written == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\n<|im_end|>\n<|im_start|>assistant\n"
    text, spans = render_with_spans([user("a"), assistant("b")], tokenizer)
    assert [text[start:end] for start, end in spans] == ["b<|im_end|>"]


def test_templates_by_name() -> None:
    assert {"chatml", *GENERAL} <= shipped().keys()
    assert text_of("qwen3") == template("qwen3")
    assert tokens_of(text_of("chatml")) == {"<|im_start|>", "<|im_end|>"}


def test_a_tokenizer_without_a_template_is_told_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer(None)
    with pytest.raises(DataError, match="Add --chat_template chatml; or"):
        require_chat_template(tokenizer)
    monkeypatch.setattr(type(tokenizer), "get_vocab", lambda self: {"a": 0})
    with pytest.raises(DataError, match=r"chatml --add_special_tokens '<\|im_start\|>,<\|im_end\|>'; or"):
        require_chat_template(tokenizer)
