"""The prompt of a record, for RL, and what its reward functions are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hftune.data.readers.base import Row
from hftune.data.records import fields
from hftune.data.records.formats import ASKS, refuse_media, unknown_format
from hftune.data.records.messages import Message
from hftune.data.records.preferences import checked_prompt
from hftune.template_arguments import FIELD, TemplateArguments

# What a prompt is made of. Everything else in a row for RL, such as "answer", reaches the reward functions.
_PROMPT_KEYS = frozenset(
    ("conversations", "messages", "conversation", *ASKS, "input", "src", "tgt", "system", "system_prompt", "history")
) | {FIELD}


@dataclass
class Prompt:
    """Messages that end with a user or tool turn, and all other columns of the row."""

    messages: list[Message]
    extra: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    template_arguments: TemplateArguments = field(default_factory=dict)


def to_prompt(row: Row) -> Prompt:
    """The prompt of a row for RL; SFT formats lose the answer after the last user turn.

    Raises:
        DataError: No prompt in any known format.
    """
    prompt = fields.prompt(row)
    if prompt is None:
        raise unknown_format(row.value, row.origin, "run_rl.py")
    refuse_media(row.value, row.origin)
    # Data for SFT serve as prompts: what is behind the last question is for the model to say.
    while prompt and prompt[-1]["role"] == "assistant":
        prompt.pop()
    extra = {key: value for key, value in row.value.items() if key not in _PROMPT_KEYS}
    return Prompt(checked_prompt(prompt, row.origin), extra, row.origin, fields.template_arguments(row))
