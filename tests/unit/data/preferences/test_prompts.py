"""Prompts for RL: their columns, and what is too long."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from hftune.data.encode_prompts import PromptEncoder
from hftune.errors import DataError
from hftune.logging import notices
from tests.unit.data.helpers import (
    make_tokenizer,
    prompts_dataset,
    row,
    template,
    user,
)


def test_prompts_keep_every_column(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(question="a", answer="1", level=3), row(prompt=[user("b")], answer="2")]
    dataset, counts = prompts_dataset(rows, chatml, max_prompt_length=None)
    assert dataset.to_dict() == {"prompt": [[user("a")], [user("b")]], "answer": ["1", "2"], "level": [3, None]}
    assert notices()[-1] == "columns that not every prompt has are None for the others: level (1 of 2)"
    # <|im_start|> user \n a <|im_end|> \n <|im_start|> assistant \n
    assert (counts.rows, counts.used, counts.tokens, counts.trained_tokens) == (2, 2, 18, 0)


def test_long_prompts_are_dropped_whole(chatml: PreTrainedTokenizerFast) -> None:
    rows = [row(prompt="a"), row(prompt="ab")]
    dataset, counts = prompts_dataset(rows, chatml, max_prompt_length=9)
    assert (len(dataset), counts.dropped) == (1, {"prompt longer than max_prompt_length": 1})
    # "a" is one token between 8 of the template: following the message keeps one record
    with pytest.raises(DataError, match="the shortest of these records needs --max_prompt_length 9"):
        prompts_dataset(rows, chatml, max_prompt_length=8)


def test_a_system_message_for_prompts_without_one(chatml: PreTrainedTokenizerFast) -> None:
    asked = {"role": "user", "content": "a"}
    rows = [row(prompt="a"), row(messages=[{"role": "system", "content": "own"}, asked]), row(question="a", answer="4")]
    dataset, counts = prompts_dataset(rows, chatml, max_prompt_length=None, system_prompt="S")
    firsts = [messages[0] for messages in dataset["prompt"]]
    assert [(first["role"], first["content"]) for first in firsts] == [
        ("system", "S"),
        ("system", "own"),
        ("system", "S"),
    ]
    assert all(messages[1:] == [asked] for messages in dataset["prompt"])
    _, plain = prompts_dataset(rows, chatml, max_prompt_length=None)
    assert counts.tokens > plain.tokens
    encoder = PromptEncoder(chatml, max_prompt_length=None, system_prompt="S")
    assert encoder.settings() == PromptEncoder(chatml, max_prompt_length=None).settings() | {"system_prompt": "S"}


def calling(arguments: Any) -> list[dict[str, Any]]:
    """A conversation in which a function is called with these arguments, in the canonical form."""
    called = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        user("a"),
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "1"},
    ]


ARGUMENTS = [{"x": 1}, {"x": "one"}, {"x": [1, "a", {"b": None}]}, {"y": {"z": 0.5}}, {}]


@pytest.mark.parametrize("number", range(1, len(ARGUMENTS)))
def test_arguments_of_tools_stay_as_they_are(number: int) -> None:
    """Neither refused for their types nor filled with each other's keys, in prompts and in columns for rewards."""
    given = [ARGUMENTS[0], ARGUMENTS[number]]
    schemas = [[{"name": "f", "parameters": {"x": {"enum": [value]}}}] for value in (1, "a")]
    rows = [row(messages=calling(one), tools=tools) for one, tools in zip(given, schemas, strict=True)]
    dataset, _ = prompts_dataset(rows, make_tokenizer(template("qwen3")), max_prompt_length=None)
    assert dataset["prompt"][:] == [calling(one) for one in given]
    assert dataset["tools"][:] == schemas


def test_columns_of_several_types_stay_as_they_are(chatml: PreTrainedTokenizerFast) -> None:
    answers = [1, "x", None, 0.5, [1, "a"]]
    rows = [row(prompt="a", answer=answer, level=level) for level, answer in enumerate(answers)]
    dataset, _ = prompts_dataset(rows, chatml, max_prompt_length=None)
    assert (dataset["answer"][:], dataset["level"][:]) == (answers, [0, 1, 2, 3, 4])
    assert str(dataset.features["level"]) == "Value('int64')"


def test_tools_that_the_model_is_not_shown_are_said(
    chatml: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("hftune.data.encode_prompts.notice", said.append)
    prompts_dataset([row(prompt="a"), row(prompt="b", tools=[{"name": "f"}])], chatml, max_prompt_length=None)
    assert any(line.startswith("1 of 2 prompts offer tools, which the model is not shown") for line in said)
