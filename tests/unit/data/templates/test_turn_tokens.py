"""Which tokens begin and end turns, read off what templates write."""

from __future__ import annotations

import pytest

from hftune.data.rendering import Renderer
from hftune.data.turn_tokens import turn_tokens
from tests.unit.data.helpers import (
    TEMPLATES,
    make_tokenizer,
    template,
)
from tests.unit.data.templates.test_turn_token_guard import each_family
from tests.unit.data.templates.turn_token_families import (
    KINDS,
    borders_of_family,
    family_tokenizer,
)


@pytest.mark.parametrize("kind", KINDS)
@each_family
def test_the_borders_of_a_family(family: str, kind: str) -> None:
    tokenizer = family_tokenizer(family, kind)
    assert {*turn_tokens(tokenizer, Renderer(tokenizer))} == borders_of_family(family)


@pytest.mark.parametrize(
    "name, borders, others",
    [
        ("qwen3", "<|im_start|> <|im_end|>", "<think> </think> <tool_call> </tool_call> <tool_response>"),
        ("llama3_1", "<|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|>", "<|python_tag|>"),
        ("gptoss", "<|start|> <|end|> <|message|> <|channel|> <|call|> <|return|>", "<|constrain|>"),
        ("glm4moe", "<|user|> <|assistant|> <|observation|> <|system|> <sop>",
         "<arg_key> </arg_value> <think> </tool_call>"),
        ("gemma4", "<|turn> <turn|>", '<|tool_call> <tool_call|> <|tool_response> <tool_response|> <|channel> <|"|>'),
        ("deepseekv3_training",
         "<｜User｜> <｜Assistant｜> <｜tool▁outputs▁begin｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> "
         "<｜tool▁outputs▁end｜> <｜end▁of▁sentence｜>",
         "<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> <think>"),
        ("lfm2_v2", "<|im_start|> <|im_end|>", "<|tool_call_start|> <|tool_call_end|> <|tool_response_start|>"),
        ("cohere", "<|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|>", "<|other|>"),
    ],
)  # fmt: skip
def test_the_borders_of_real_templates(name: str, borders: str, others: str) -> None:
    """Turn tokens are borders, and marks that belong into an answer are not, special or not."""
    tokenizer = make_tokenizer(template(name))
    tokenizer.add_tokens([token for token in [*borders.split(), *others.split()] if token not in tokenizer.get_vocab()])
    found = turn_tokens(tokenizer, Renderer(tokenizer))
    assert {*borders.split()} <= {*found} and not {*others.split()} & {*found}


def test_ends_of_texts_are_borders_without_a_template() -> None:
    tokenizer = make_tokenizer(None)
    assert {"<bos>", "<|endoftext|>"} <= {*turn_tokens(tokenizer, None)}
    assert "<|im_start|>" not in turn_tokens(tokenizer, None)


def test_a_template_in_plain_text_has_no_border_tokens() -> None:
    tokenizer = make_tokenizer("{% for m in messages %}### {{ m.role }}:\n{{ m.content }}\n{% endfor %}")
    assert "###" not in "".join(turn_tokens(tokenizer, Renderer(tokenizer)))


@pytest.mark.parametrize("name", sorted(path.stem for path in TEMPLATES.glob("*.jinja")))
def test_every_template_that_trl_ships_has_borders(name: str) -> None:
    tokenizer = make_tokenizer(template(name))
    written = turn_tokens(tokenizer, Renderer(tokenizer))
    assert not [token for token in written if "think" in token or "tool_call" in token]
