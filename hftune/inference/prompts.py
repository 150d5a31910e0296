"""What a model that answers is given, and which tokens end what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from hftune.data.messages import Message
from hftune.data.rendering import Renderer
from hftune.data.turn_tokens import TurnTokenGuard, token_ids
from hftune.logging import notice
from hftune.opening.files import copy_file
from hftune.template_arguments import TEMPLATE_FAULTS, TemplateArguments

Messages = list[dict[str, str]]
# Letters alone: templates strip white space and would escape nothing in these.
_CONVERSATION: Messages = [{"role": "user", "content": "Quseroneq"}, {"role": "assistant", "content": "Qanswroneq"}]


class PromptWriter:
    """Writes conversations as prompts of one model, with a notice where it has no chat template.

    Args:
        name: Of the model.
        tokenizer: Its own, with the arguments of its template.
        borders_in_text: What becomes of turn tokens in texts; see `--borders_in_text`.

    Attributes:
        render: Writes by the chat template; None where there is none.
    """

    def __init__(self, name: str, tokenizer: PreTrainedTokenizerBase, borders_in_text: str) -> None:
        self.tokenizer = tokenizer
        self.render = Renderer(tokenizer) if tokenizer.chat_template else None
        self.guard = TurnTokenGuard(tokenizer, borders_in_text, self.render)
        if self.render is None:
            notice(f"{name} has no chat template: it is given the bare text of the last turn")

    def text(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        arguments: TemplateArguments | None = None,
    ) -> str:
        """The prompt of a conversation.

        Args:
            arguments: What the template is given besides the model's own; these win.

        Raises:
            DataError: The template refuses the conversation, or there is a turn token in a text that must have none.
        """
        if self.render is None:
            return self.guard.document(str(messages[-1].get("content")))
        return self.guard.text(self.render.given(arguments), messages, tools, add_generation_prompt=True)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of prompts that `text` has written."""
        # A chat template writes the special tokens itself; a second BOS would be part of the prompt.
        return [list(one) for one in token_ids(self.tokenizer, [*texts], add_special_tokens=self.render is None)]


def ends_of(tokenizer: PreTrainedTokenizerBase, settings: GenerationConfig) -> list[int]:
    """The ids of the tokens that end an answer; one that the template alone knows is said."""
    known = settings.eos_token_id
    ids = [known] if isinstance(known, int) else list(known or [])
    if not ids and tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    # A server that knows only the end of text runs on after a chat model's turn.
    ends_turn = terminator(tokenizer)
    if ends_turn is not None:
        number = tokenizer.convert_tokens_to_ids(ends_turn)
        if number not in ids:
            notice(f"{ends_turn!r} ends an answer in the chat template and was no end for generation: it is one now")
            ids.append(number)
    return ids


def write_generation_config(folder: Path, output: Path, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Write a model's settings for generation with all tokens that end an answer, and return these."""
    has_settings = (folder / "generation_config.json").is_file()
    settings = GenerationConfig.from_pretrained(folder) if has_settings else GenerationConfig()
    ids = ends_of(tokenizer, settings)
    settings.eos_token_id = ids[0] if len(ids) == 1 else ids
    settings.pad_token_id = tokenizer.pad_token_id
    settings.save_pretrained(output)
    template = "chat_template.jinja"
    if (folder / template).is_file() and not (output / template).is_file():
        copy_file(folder / template, output / template, within=folder)
    return [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]


def terminator(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The token that ends an answer in the chat template; None without a template, or where no single token does.

    It need not be the tokenizer's end of text: a server that does not know it never stops.
    """
    if not tokenizer.chat_template:
        return None
    text = render_whole(tokenizer, _CONVERSATION, ask=False)
    if text is None:
        return None
    after = text.rsplit(_CONVERSATION[1]["content"], 1)[1].lstrip()
    # The longest first, for one token may begin with another. Added tokens need not be marked as special.
    known = sorted({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}, key=len, reverse=True)
    return next((token for token in known if after.startswith(token)), None)


def render_whole(tokenizer: PreTrainedTokenizerBase, messages: Messages, *, ask: bool) -> str | None:
    """The template's text; None if it refuses the conversation, or leaves a turn out."""
    try:
        text: Any = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
    except TEMPLATE_FAULTS:
        return None
    return str(text) if all(turn["content"] in text for turn in messages) else None
