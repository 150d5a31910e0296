"""A model that says what it is told to, with a real tokenizer and a real template. Not a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import trl
from transformers import GenerationConfig

from hftune.arguments.asking import ChatArguments
from hftune.inference.loading import Talker
from hftune.tools.chatting.chat import Chat
from hftune.tools.chatting.speaker import Speaker
from tests.conftest import tiny_tokenizer

INTERRUPT = "<CTRL-C>"
"""In what is said: a KeyboardInterrupt in its place."""


def template(name: str) -> str:
    """A chat template that TRL ships."""
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()


class ScriptedModel:
    """Gives the streamer one text after another, token by token, each with an end unless its room is too small."""

    device = torch.device("cpu")

    def __init__(self, tokenizer: Any, context: int = 4096) -> None:
        self.tokenizer, self.texts, self.calls = tokenizer, [], []
        text_config = SimpleNamespace(max_position_embeddings=context)
        self.config = SimpleNamespace(get_text_config=lambda: text_config)

    def generate(self, inputs: torch.Tensor, *, streamer: Any, max_new_tokens: int, **options: Any) -> None:
        self.calls.append({"prompt": inputs[0].tolist(), "max_new_tokens": max_new_tokens, **options})
        streamer.put(inputs)
        said, stop, _ = self.texts.pop(0).partition(INTERRUPT)
        ids = self.tokenizer(said, add_special_tokens=False)["input_ids"]
        self.calls[-1]["said"] = [*ids, *([] if stop else [self.tokenizer.eos_token_id])][:max_new_tokens]
        for index in self.calls[-1]["said"]:
            streamer.put(torch.tensor([index]))
        if stop:
            raise KeyboardInterrupt
        streamer.end()


def talker(name: str = "tiny", chat_template: str | None = None, context: int = 4096) -> Talker:
    """A scripted model, with a ChatML template unless another is given; "" is none."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template if chat_template is None else chat_template or None
    model: Any = ScriptedModel(tokenizer, context)
    return Talker(name, model, tokenizer, GenerationConfig(), [tokenizer.eos_token_id])


def says(one: Talker, *texts: str) -> Talker:
    """The same, which will say these."""
    one.model.texts.extend(texts)  # type: ignore[union-attr]
    return one


def chat_with(one: Talker, **options: Any) -> Callable[..., Chat]:
    """`chat_with(talker)("Hello", "/retry")` runs these lines through a chat."""
    given = {name: options.pop(name) for name in ("system", "tools", "patient") if name in options}
    args = ChatArguments(models=[one.name], **options)
    speaker = Speaker(one, args, given.get("system"), given.get("tools"))
    found = Chat(speaker, args, patient=given.get("patient", False))

    def run(*lines: str) -> Chat:
        found.run(iter(lines))
        return found

    return run
