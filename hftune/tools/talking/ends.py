"""Which tokens end an answer: those that the model's settings name, and the one that its chat template writes."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from hftune.logging import notice
from hftune.template_arguments import TEMPLATE_FAULTS

Messages = list[dict[str, str]]
# Letters alone: templates strip white space and would escape nothing in these.
_CONVERSATION: Messages = [{"role": "user", "content": "Quseroneq"}, {"role": "assistant", "content": "Qanswroneq"}]


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
