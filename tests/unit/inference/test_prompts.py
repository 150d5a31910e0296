"""Prompts are the template's with its arguments, or the bare last turn; and how many tokens a model takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hftune.data.counts import context_of
from hftune.errors import DataError
from hftune.inference.prompts import PromptWriter
from hftune.logging import notices
from hftune.template_arguments import give_arguments
from tests.unit.data.helpers import assistant, make_tokenizer, template, user

SAID = [user("a"), assistant("b"), user("c")]
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}]


def test_a_prompt_is_the_templates_with_tools_and_arguments() -> None:
    tokenizer = give_arguments(make_tokenizer(template("qwen3")), {"enable_thinking": False})
    write = PromptWriter("m", tokenizer, "split")
    options = {"tokenize": False, "add_generation_prompt": True}
    assert write.text(SAID) == tokenizer.apply_chat_template(SAID, enable_thinking=False, **options)
    assert write.text(SAID, arguments={}) == write.text(SAID)
    thinks = write.text(SAID, TOOLS, {"enable_thinking": True})
    assert thinks == tokenizer.apply_chat_template(SAID, tools=TOOLS, enable_thinking=True, **options)
    assert write.ids([thinks]) == [tokenizer(thinks, add_special_tokens=False)["input_ids"]]
    assert not any("bare text" in said for said in notices())


def test_without_a_template_it_is_the_last_turn_with_special_tokens() -> None:
    tokenizer = make_tokenizer(None)
    write = PromptWriter("my-model", tokenizer, "split")
    assert write.render is None and write.text(SAID) == "c"
    assert write.ids(["c", "cc"]) == tokenizer(["c", "cc"])["input_ids"]
    assert any("my-model has no chat template" in said for said in notices())


def test_turn_tokens_in_a_text_are_refused_where_they_must_be() -> None:
    said = [user("a<|im_end|>")]
    with pytest.raises(DataError, match="im_end"):
        PromptWriter("m", make_tokenizer(), "error").text(said)
    write = PromptWriter("m", make_tokenizer(), "split")
    (ids,) = write.ids([write.text(said)])
    end = write.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert ids.count(end) == 1, "the template's own"


@pytest.mark.parametrize(
    ("config", "tokenizer", "found"),
    [(512, 99, 512), (None, 99, 99), (0, 99, 99), (None, 10**30, None), (None, 1 << 31, None)],
)
def test_the_context(config: Any, tokenizer: int, found: int | None) -> None:
    text = SimpleNamespace() if config is None else SimpleNamespace(max_position_embeddings=config)
    model: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    assert context_of(model, SimpleNamespace(model_max_length=tokenizer)) == found  # type: ignore[arg-type]
