"""Masks token by token on real templates, against the marks of those that have them, and against the text itself."""

from __future__ import annotations

from typing import Any

import pytest

from hftune.constants import IGNORE_INDEX
from hftune.data.rendering import Renderer
from hftune.errors import DataError
from tests.unit.data.helpers import (
    TEMPLATES,
    assistant,
    call,
    make_tokenizer,
    row,
    slow_if_alike,
    template,
    tokenize_chat,
    user,
)

IMAGES = {"idefics3", "llava_next", "smolvlm", "diffusion_gemma"}
SMOLLM2 = (
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHIPPED = sorted(path.stem for path in TEMPLATES.glob("*.jinja") if path.stem.removesuffix("_training") not in IMAGES)
NAMES = [*SHIPPED, "SmolLM2"]

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer", "description": "e"}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "get", "description": "d", "parameters": SCHEMA}}]
TURNS = [user("你好，世界?"), assistant("第一 🙂!"), user("naïve?\n"), assistant("done\n\nThe answer is 42.")]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "turns": TURNS,
    "system": [{"role": "system", "content": "Be brief. 简短。"}, *TURNS],
    "tools": [
        user("a?"),
        call("get", x=1),
        {"role": "tool", "name": "get", "content": "Ergebnis 77"},
        assistant("二十 grad!"),
    ],
}


def example(name: str, kind: str) -> tuple[Any, dict[str, list[int]]]:
    """The tokenizer with a template, and a conversation by it; skips where the template refuses the conversation."""
    tokenizer = make_tokenizer(SMOLLM2 if name == "SmolLM2" else template(name))
    tools = {"tools": TOOLS} if kind == "tools" else {}
    try:
        dataset, _ = tokenize_chat(
            [row(messages=CONVERSATIONS[kind], **tools)],
            tokenizer,
            max_length=4096,
            rewritten="keep",
        )
    except DataError as error:
        # Said with its reason, never masked on a guess.
        assert (
            error.kind in ("refused by the chat template", "turn cut by the chat template") or "rewritten" in error.kind
        )
        pytest.skip(str(error).splitlines()[0])
    return tokenizer, dataset[0]


@pytest.mark.parametrize("kind", CONVERSATIONS)
@pytest.mark.parametrize("name", slow_if_alike(NAMES))
def test_every_token_of_the_answers_and_none_of_the_rest(name: str, kind: str) -> None:
    tokenizer, found = example(name, kind)
    messages = CONVERSATIONS[kind]
    text = Renderer(tokenizer)(messages, TOOLS if kind == "tools" else None)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert found["input_ids"] == encoded["input_ids"]
    trained = [label != IGNORE_INDEX for label in found["labels"]]
    for message in messages:
        content = message["content"].strip()
        if not content:
            continue
        # Each content stands in these texts once; all of its tokens are trained, or none.
        assert text.count(content) == 1
        start = text.index(content)
        inside = [
            mark
            for (first, last), mark in zip(encoded["offset_mapping"], trained, strict=True)
            if first >= start and last <= start + len(content) and first < last
        ]
        assert inside and set(inside) == {message["role"] == "assistant"}, content
