"""Which tokens end an answer: those that the model's settings name, and the one that its chat template writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from hftune.logging import notice
from hftune.opening.files import copy_file
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


def write_generation_config(folder: Path, output: Path, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Write a model's settings for generation with all tokens that end an answer, and return these."""
    has_settings = (folder / "generation_config.json").is_file()
    settings = GenerationConfig.from_pretrained(folder) if has_settings else GenerationConfig()
    ids = ends_of(tokenizer, settings)
    settings.eos_token_id = ids[0] if len(ids) == 1 else ids
    settings.pad_token_id = tokenizer.pad_token_id
    settings.save_pretrained(output)
    for extra in ("chat_template.jinja",):
        if (folder / extra).is_file() and not (output / extra).is_file():
            copy_file(folder / extra, output / extra, within=folder)
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
