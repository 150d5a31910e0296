"""An answer with a label, good or bad, for KTO."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hftune.data.readers.base import Row
from hftune.data.records import fields
from hftune.data.records.conversations import NO_ASSISTANT, READERS
from hftune.data.records.formats import KTO, LABELLED, first_fit, pair_format, refuse_media, unknown_format, wrong_stage
from hftune.data.records.messages import Message
from hftune.data.records.preferences import refuse_weights
from hftune.errors import DataError
from hftune.template_arguments import TemplateArguments

# The label of an answer, by its name; TRL and ms-swift, LLaMA-Factory.
_LABELS = ("kto_tag", "label")


@dataclass
class Labelled:
    """A prompt, which ends with a user or tool turn, one answer to it, and whether the answer is good (KTO)."""

    prompt: list[Message]
    completion: list[Message]
    label: bool
    tools: list[dict[str, Any]] | None
    origin: str
    template_arguments: TemplateArguments = field(default_factory=dict)


def to_labelled(row: Row) -> Labelled:
    """The prompt, the answer and the label of a row for training on unpaired labels (KTO).

    Raises:
        DataError: In no known format, a label that is not true or false, or no answer after the prompt.
    """
    value, origin = row.value, row.origin
    if pair_format(value):
        raise wrong_stage(value, origin, KTO)
    found = first_fit(value, LABELLED)
    if found is None:
        raise unknown_format(value, origin, KTO)
    refuse_media(value, origin)
    # Without the label, the record is one of the formats for SFT, and is read as such.
    key = next(key for key in _LABELS if key in found.keys)
    messages = READERS[found.keys[:-1]](row)
    # Everything behind the last question is the answer: with calls and results of tools, several turns.
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    if last + 1 == len(messages) or last < 0:
        cause = "the record has no answer that the label could be about"
        raise DataError(cause, place=origin, fix="Add the question and the answer.", kind=NO_ASSISTANT)
    prompt, completion = messages[: last + 1], messages[last + 1 :]
    refuse_weights(completion, origin)
    label = _label(value[key], key, origin)
    return Labelled(prompt, completion, label, fields.tools(row), origin, fields.template_arguments(row))


def _label(value: Any, key: str, origin: str) -> bool:
    """true or false, also as 1 and 0, and in tables as words or as 1.0 and 0.0."""
    known = {"true": True, "false": False, "1": True, "0": False}
    found = known.get(str(value).strip().lower().removesuffix(".0")) if isinstance(value, (int, float, str)) else None
    if found is None:
        cause = f'"{key}" must be true or false, found {value!r:.40}'
        raise DataError(cause, place=origin, fix="true: a good answer, false: a bad one.", kind=fields.BAD_LABEL)
    return found
