"""Chat templates by name: those that TRL ships, and plain ChatML."""

from __future__ import annotations

import functools
import re
from pathlib import Path

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template that other tools call chatml: roles and texts, without a default system text, tools or reasoning."""

GENERAL = ("qwen3", "qwen3_instruct_2507", "qwen2_5", "llama3_1", "glm4moe", "lfm2_v2", "gptoss")
"""Templates that write function calls, in the order in which they are proposed where another one drops them."""

# Qwen's, Llama's and GLM's way to write a special token; others are in the tokenizer's own list.
_TOKEN = re.compile(r"<\|[^<>|\s]+\|>")


@functools.cache
def shipped() -> dict[str, Path | None]:
    """The names that `--chat_template` takes, with their files; None for hftune's own."""
    # TRL is found without being imported, which takes seconds.
    import importlib.util

    found = importlib.util.find_spec("trl")
    assert found is not None and found.origin, "TRL is required"
    folder = Path(found.origin).parent / "chat_templates"
    return {"chatml": None} | {file.stem: file for file in sorted(folder.glob("*.jinja"))}


def text_of(name: str) -> str:
    """The template of a name in `shipped()`."""
    file = shipped()[name]
    return file.read_text(encoding="utf-8") if file is not None else CHATML


def tokens_of(template: str) -> set[str]:
    """The special tokens that a template writes around turns, such as <|im_end|>."""
    return set(_TOKEN.findall(template))
