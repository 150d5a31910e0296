"""What a chat template is given besides the conversation: reading, checks, and how it is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hftune.data.encode import ChatEncoder
from hftune.data.mask import SpanFinder
from hftune.data.records import to_conversation
from hftune.data.rendering import Renderer
from hftune.data.storage import tokenizer_state
from hftune.errors import ArgumentError, DataError
from hftune.template_arguments import (
    FLAG,
    arguments_of,
    check_arguments,
    give_arguments,
    names_read,
    parse_arguments,
    readable,
    switches,
    with_defaults,
)
from hftune.trainers.online.guarded_tokenizer import guarded_tokenizer
from tests.unit.data.helpers import assistant, make_tokenizer, row, template, user

OFF = {"enable_thinking": False}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("qwen3", {"enable_thinking"}),
        ("gptoss", {"builtin_tools", "model_identity", "reasoning_effort"}),
        ("llama3_1", {"builtin_tools", "custom_tools", "date_string", "tools_in_user_message"}),
        ("gemma4_v5", {"enable_thinking", "preserve_thinking"}),
        ("lfm2_2_5", {"preserve_thinking"}),
        ("deepseekv3", set()),
        ("qwen3_training", {"enable_thinking"}),  # {% generation %} is transformers' own word
    ],
)
def test_names_that_a_template_reads(name: str, read: set[str]) -> None:
    assert names_read(template(name)) == read


@pytest.mark.parametrize("template", ["{% if %}", f"{{{{ x {'+ 1' * 5000} }}}}"], ids=["broken", "deep"])
def test_a_broken_template_reads_nothing(template: str) -> None:
    assert names_read(template) == switches(template) == frozenset()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{bad", "not valid JSON"),
        ("[1]", "must be an object"),
        (5, "must be an object"),
        (True, "must be an object"),
        ('{"enable_thinking": "False"}', "enable_thinking must be true or false, found False"),
        ('{"enable_thinking": 0}', "enable_thinking must be true or false, found 0"),
        ('{"enable_thinking": {"a": 1}}', "must be true or false"),
        ('{"enable_thinking": NaN}', "no value of JSON"),
        ({"enable_thinking": float("inf")}, "no value of JSON"),
        ({"enable_thinking": object()}, "no value of JSON"),
        ({1: True}, "no value of JSON"),
        ("[" * 5000, "too deeply"),
        ('{"enabel": 1}', "does not read enabel; it reads enable_thinking"),
        ('{"messages": []}', "does not read messages (what transformers gives it itself cannot be set)"),
        ('{"add_generation_prompt": true}', "cannot be set"),
    ],
)
@pytest.mark.parametrize("error", [ArgumentError, DataError])
def test_what_cannot_be_given(value: Any, said: str, error: Any) -> None:
    with pytest.raises(error) as caught:
        check_arguments(parse_arguments(value, FLAG, error), template("qwen3"), FLAG, error)
    assert said in caught.value.cause and caught.value.place == FLAG and caught.value.fix


def test_a_template_that_reads_none() -> None:
    with pytest.raises(ArgumentError, match="does not read a; it reads none"):
        check_arguments({"a": True}, "{{ messages }}", FLAG)


def test_null_is_absent() -> None:
    assert parse_arguments('{"a": null, "b": [1, {"c": "d"}]}', FLAG) == {"b": [1, {"c": "d"}]}
    assert parse_arguments(None, FLAG) == parse_arguments(" ", FLAG) == parse_arguments("{}", FLAG) == {}


def test_arguments_are_kept_with_the_tokenizer() -> None:
    plain, off = make_tokenizer(template("qwen3")), give_arguments(make_tokenizer(template("qwen3")), OFF)
    empty = "<think>\n\n</think>\n\n"
    assert Renderer(off)([user("a")], add_generation_prompt=True).endswith(empty)
    assert not Renderer(plain)([user("a")], add_generation_prompt=True).endswith(empty)
    assert arguments_of(off) == OFF and arguments_of(plain) == {}
    # Another cache entry, another setting; without arguments the state is what it was.
    assert tokenizer_state(off) == tokenizer_state(plain) | {"template_arguments": OFF}
    with pytest.raises(ArgumentError, match="does not read"):
        give_arguments(make_tokenizer(), OFF)
    assert readable(OFF, make_tokenizer()) == {} and readable(OFF, plain) == OFF


def test_a_record_has_its_own() -> None:
    tokenizer = give_arguments(make_tokenizer(template("qwen3")), OFF)
    finder, said = SpanFinder(tokenizer, empty_thoughts="train"), [user("a"), assistant("b")]
    trained = [_trained(finder(said, None, given)) for given in (None, {"enable_thinking": True}, OFF)]
    assert trained == ["b<|im_end|>", "<think>\n\n</think>\n\nb<|im_end|>", "b<|im_end|>"]
    with pytest.raises(DataError, match="does not read thinks"):
        finder(said, None, {"thinks": True})


def test_a_record_is_read_and_refused_with_its_place() -> None:
    record = {"messages": [user("a"), assistant("b")], "chat_template_kwargs": '{"enable_thinking": true}'}
    assert to_conversation(row(**record)).template_arguments == {"enable_thinking": True}
    encoder = ChatEncoder(make_tokenizer(template("qwen3")), max_length=64)
    for given in ("{", {"enable_thinking": "true"}, {"nothing": 1}, [1]):
        with pytest.raises(DataError) as caught:
            encoder.parse(row(**record | {"chat_template_kwargs": given}))
        assert str(caught.value.place).startswith("data.jsonl:1")


def test_a_reward_model_reads_as_it_was_trained() -> None:
    trained = give_arguments(make_tokenizer(template("qwen3")), OFF)
    given = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": True}
    for mode in ("split", "allow"):
        # TRL gives the policy's arguments; those that are kept with the tokenizer count.
        assert guarded_tokenizer(trained, mode).apply_chat_template([user("a")], **given).endswith("</think>\n\n")
    plain = guarded_tokenizer(make_tokenizer(template("qwen3")), "split")
    given["enable_thinking"] = False
    assert plain.apply_chat_template([user("a")], **given).endswith("assistant\n")


def _trained(found: Any) -> str:
    (span,) = found.spans
    return str(found.text[span.start : span.end])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "glm4moe", "gptoss", "deepseekv3"])
def test_defaults_in_a_template_are_arguments_given(name: str) -> None:
    text = template(name)
    said = [user("a"), assistant("b"), user("c")]
    values = {"enable_thinking": False, "reasoning_effort": "high", "clear_thinking": True}
    values = {name: value for name, value in values.items() if name in names_read(text)}
    plain, baked = make_tokenizer(text), make_tokenizer(with_defaults(text, values))
    for given in ({}, {name: True if value is False else "low" for name, value in values.items()}):
        for ask in (True, False):
            options = {"tokenize": False, "add_generation_prompt": ask}
            expected = plain.apply_chat_template(said, **{**values, **given}, **options)
            assert baked.apply_chat_template(said, **given, **options) == expected
    assert names_read(baked.chat_template) >= {*values}


@pytest.mark.parametrize(
    "value", [True, None, 7, 0.5, 'it\'s %} "x" {{ y }}', "你好 🙂\n", {"a": [None, {"b": "%"}], "}": False}]
)
def test_every_value_can_be_a_default(value: Any) -> None:
    baked = make_tokenizer(with_defaults("{{ x | tojson }}", {"x": value}))
    assert json.loads(str(baked.apply_chat_template([user("a")], tokenize=False))) == value
