"""A tokenizer by whose chat template what is said stays text (`--borders_in_text`), for TRL to write prompts with.

TRL renders and encodes prompts, results of tools and what reward models read by the tokenizer's own methods, so those
are what changes; a conversation without a turn border in it goes to them as it is.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from hftune.data.rendering import Renderer
from hftune.data.turn_tokens import GuardedText, TurnTokenGuard, mode_for_answers, token_ids
from hftune.template_arguments import arguments_of, readable


class GuardedTokenizer:
    """Stands for a tokenizer where conversations and their texts are encoded.

    Its template is given what is kept with the tokenizer (`template_arguments.py`), not what TRL has for the policy: a
    reward model reads conversations as it was trained to.

    Args:
        tokenizer: With a chat template.
        mode: Of `TurnTokenGuard`, split or allow.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, mode: str = "split") -> None:
        self.tokenizer, self.guard = tokenizer, TurnTokenGuard(tokenizer, mode, Renderer(tokenizer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        *,
        tokenize: bool = True,
        return_dict: bool = True,
        **options: Any,
    ) -> Any:
        """As transformers', for one conversation or several; ids come without padding, as lists."""
        theirs = readable(options, self.tokenizer)
        options = {name: value for name, value in options.items() if name not in theirs} | arguments_of(self.tokenizer)
        several = bool(conversation) and isinstance(conversation[0], (list, tuple))
        conversations = conversation if several else [conversation]
        # Nothing in it looks like a border: the tokenizer's own way is exact, and faster.
        if not any(self.guard.may_hold(messages, tools) for messages in conversations):
            form = {"tokenize": tokenize, "return_dict": return_dict and tokenize}
            return self.tokenizer.apply_chat_template(conversation, tools=tools, **form, **options)
        texts = [self.guard.text(self._render, messages, tools, **options) for messages in conversations]
        if not tokenize:
            return texts if several else texts[0]
        ids = token_ids(self.tokenizer, texts, add_special_tokens=False)
        if not return_dict:
            return ids if several else ids[0]
        found = {"input_ids": ids, "attention_mask": [[1] * len(one) for one in ids]}
        return found if several else {name: lists[0] for name, lists in found.items()}

    def __call__(self, text: Any = None, **options: Any) -> Any:
        """As transformers'; texts of `apply_chat_template` as they were rendered."""
        texts = [text] if isinstance(text, str) else text
        if not texts or not any(isinstance(one, GuardedText) for one in texts):
            return self.tokenizer(text=text, **options)
        ids = token_ids(self.tokenizer, texts, add_special_tokens=options.pop("add_special_tokens", True))
        return self.tokenizer.pad({"input_ids": ids}, **options)

    def _render(self, messages: Any, tools: Any, **options: Any) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, **options))


def guarded_tokenizer(tokenizer: PreTrainedTokenizerBase, mode: str) -> Any:
    """The tokenizer, or what stands for it: unless borders are allowed, and where its template has arguments."""
    chats = isinstance(tokenizer, PreTrainedTokenizerBase) and tokenizer.chat_template
    needed = mode != "allow" or arguments_of(tokenizer)
    return GuardedTokenizer(tokenizer, mode_for_answers(mode)) if chats and needed else tokenizer
