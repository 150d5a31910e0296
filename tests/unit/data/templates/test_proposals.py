"""Where a template cannot write a record, one is named that can: following the message trains it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.chat_templates import GENERAL, shipped, text_of, tokens_of
from hftune.data.rendering import Renderer, TemplateProposals, fitting_templates, require_chat_template
from hftune.data.turns import TurnFinder
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, call, make_tokenizer, render_with_spans, template, user

WITH_CALL = [user("a"), call("get", x=1), {"role": "tool", "content": "20"}, assistant("20")]
NAMED = re.compile(r"--chat_template ([\w.]+)")


def refused(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]]) -> DataError:
    with pytest.raises(DataError) as caught:
        render_with_spans(messages, tokenizer)
    return caught.value


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (None, WITH_CALL),
        ("phi3", WITH_CALL),
        (None, [user("a"), assistant("b", reasoning_content="hm")]),
    ],
)
def test_the_template_that_is_named_writes_the_record(name: str | None, messages: list[dict[str, Any]]) -> None:
    tokenizer = make_tokenizer(template(name)) if name else make_tokenizer()
    problem = refused(tokenizer, messages)
    assert problem.fix and problem.fix.startswith("Add --chat_template ")
    named = NAMED.search(problem.fix)
    assert named
    tokenizer.chat_template = text_of(named[1])
    text, spans = render_with_spans(messages, tokenizer)
    trained = "".join(text[start:end] for start, end in spans)
    assert "get" in trained if messages is WITH_CALL else "hm" in trained


def test_a_template_that_loses_the_tools_is_not_named() -> None:
    """It is tried with the record's tools, which it must write."""
    tools = [{"type": "function", "function": {"name": "get", "description": "d", "parameters": {}}}]
    finder = TurnFinder([user("a"), assistant("b")], Renderer(make_tokenizer(template("qwen2_5"))), tools)
    refuses = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + str(template("qwen2_5"))
    assert finder._found_with(make_tokenizer(template("qwen2_5"))) is True
    assert finder._found_with(make_tokenizer(refuses)) is False


def test_only_templates_of_known_tokens_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    known = {word for word in tokenizer.get_vocab() if "im_" not in word}
    assert "qwen3" in fitting_templates(tokenizer)
    monkeypatch.setattr(type(tokenizer), "get_vocab", lambda self: dict.fromkeys(known, 0))
    assert "qwen3" not in fitting_templates(tokenizer)
    problem = refused(tokenizer, WITH_CALL)
    assert problem.fix == (
        "Remove the function call from the record; or leave such records out with --on_bad_record drop; or give a "
        "template that writes it, as --chat_template FILE.jinja."
    )


def test_one_search_for_many_records() -> None:
    tried: list[str] = []

    def works(tokenizer: Any) -> bool:
        tried.append(tokenizer.chat_template)
        return len(tried) == 2

    choice = TemplateProposals(make_tokenizer())
    ways = [choice.fix_for("a fault", "fix it", works) for _ in range(3)]
    second = fitting_templates(choice.tokenizer)[1]
    assert tried == [text_of(name) for name in fitting_templates(choice.tokenizer)[:2]]
    assert (
        ways
        == [
            f"Add --chat_template {second}, which writes this record whole; or fix it; or leave such records out with "
            "--on_bad_record drop."
        ]
        * 3
    )


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


def test_a_template_that_asks_for_a_token_of_another_model() -> None:
    tokenizer = make_tokenizer(template("llama3"))
    tokenizer.bos_token = None
    problem = refused(tokenizer, [user("a"), assistant("b")])
    assert (
        problem.cause
        == "the chat template writes the bos_token, and this tokenizer has none: it belongs to another model"
    )
    assert str(problem.fix).startswith("Leave --chat_template out, or --chat_template qwen3, or give a tokenizer")
    assert problem.place == "--chat_template"


def test_other_refusals_are_those_of_the_template() -> None:
    problem = refused(
        make_tokenizer(template("gemma")), [{"role": "system", "content": "S"}, user("a"), assistant("b")]
    )
    assert "System role not supported" in problem.cause and "--on_bad_record drop" in str(problem.fix)


def test_require_chat_template(chatml: PreTrainedTokenizerFast) -> None:
    require_chat_template(chatml)
    with pytest.raises(DataError, match="no chat template") as caught:
        require_chat_template(make_tokenizer(None))
    assert "--chat_template" in str(caught.value)
