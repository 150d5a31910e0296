"""Chat templates as text around turns, and as Go templates for Ollama."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl

from hftune.errors import UserError
from hftune.inference.prompts import terminator
from hftune.models.loading.tokenizer import read_chat_template
from hftune.tools.export.ollama import go_template, modelfile
from hftune.tools.export.turns import Turns, turns_of
from tests.conftest import tiny_tokenizer

TEMPLATES = sorted(file.stem for file in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
TALK = [
    {"role": "user", "content": "Hi {{ there }}"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "And now?"},
]


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()


def test_pieces_of_chatml(tokenizer) -> None:
    found = turns_of(tokenizer)
    assert found == Turns(
        start="",
        opening="",
        before={role: f"<|im_start|>{role}\n" for role in ("user", "assistant", "system")},
        after=dict.fromkeys(("user", "assistant", "system"), "<|im_end|>\n"),
        asks="<|im_start|>assistant\n",
    )
    assert found.render(TALK, ask=True) == tokenizer.apply_chat_template(
        TALK, tokenize=False, add_generation_prompt=True
    )


def test_a_default_system_turn_is_the_opening(tokenizer) -> None:
    tokenizer.chat_template = (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
        + tokenizer.chat_template
    )
    found = turns_of(tokenizer)
    assert found is not None and found.opening == "<|im_start|>system\nBe kind.<|im_end|>\n"
    assert go_template(found).startswith("{{ if not .System }}<|im_start|>system\nBe kind.<|im_end|>\n{{ end }}")


def test_templates_in_the_wild(tokenizer) -> None:
    """Each is either taken apart exactly, or left alone."""
    apart = 0
    for name in TEMPLATES[::3]:
        tokenizer.chat_template = read_chat_template(name)
        found = turns_of(tokenizer)
        apart += found is not None
        for messages, ask in ((TALK, True), (TALK[:1], True), (TALK[:2], False)) if found else ():
            written = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
            assert found.render(messages, ask=ask) == written, name
    assert 0 < apart < len(TEMPLATES[::3])


def test_a_template_that_does_more_is_left_out(tokenizer) -> None:
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}"
    assert turns_of(tokenizer) is None
    assert "TEMPLATE" not in modelfile("m.gguf", tokenizer, None)


def test_the_modelfile(tokenizer) -> None:
    text = modelfile("m.gguf", tokenizer, None, system="Answer in one word.")
    assert text.splitlines()[0] == "FROM ./m.gguf"
    assert 'SYSTEM """Answer in one word."""' in text
    assert text.count('PARAMETER stop "<|im_end|>"') == 1
    assert (
        '{{ if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n{{ if $last }}<|im_start|>assistant\n'
        in text
    )
    assert text.count("{{ if") + text.count("{{ range") == text.count("{{ end }}")


def test_braces_and_quotes_in_a_template(tokenizer) -> None:
    around = Turns("", "", {"user": "{{U}}: ", "assistant": ""}, {"user": "\n", "assistant": "\n"}, "")
    assert '{{ "{{" }}U}}: ' in go_template(around)
    with pytest.raises(UserError, match='"""'):
        go_template(Turns("", "", {"user": '"""', "assistant": ""}, {"user": "", "assistant": ""}, ""))


def test_the_terminator_need_not_be_the_end_of_text(tokenizer) -> None:
    tokenizer.eos_token = "<|pad|>"
    assert terminator(tokenizer) == "<|im_end|>"
    assert 'PARAMETER stop "<|im_end|>"' in modelfile("m.gguf", tokenizer, None)
    tokenizer.chat_template = None
    assert terminator(tokenizer) is None
