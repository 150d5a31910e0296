"""What a model that answers is given: `hftune ask`, `chat` and their like write it here, so that all ask the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.messages import Message
from hftune.data.rendering import Renderer
from hftune.data.turn_tokens import TurnTokenGuard, token_ids
from hftune.logging import notice
from hftune.template_arguments import TemplateArguments


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
