"""Conversations as the template writes them, and what it refuses."""

from __future__ import annotations

import pytest

from hftune.data.rendering import Renderer
from hftune.errors import DataError
from tests.unit.data.helpers import assistant, make_tokenizer, user

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
        ("{{ 'a' + cls_token }}", "writes the cls_token, and this tokenizer has none"),
    ],
)
def test_what_a_template_refuses(template: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Renderer(make_tokenizer(template))(TALK)
