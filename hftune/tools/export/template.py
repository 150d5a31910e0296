"""The chat template of an export: as the model was trained with it, for programs that give templates no arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hftune.checkpoints.template_arguments import recorded_arguments
from hftune.logging import notice
from hftune.models.loading.from_pretrained import pretrained
from hftune.template_arguments import TemplateArguments, readable, with_defaults


def exported_tokenizer(folder: Path, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, whose template has the arguments of the model's training as its defaults."""
    tokenizer: PreTrainedTokenizerBase = pretrained(AutoTokenizer, folder, trust_remote_code=trust_remote_code)
    if tokenizer.chat_template:
        arguments = readable(recorded_arguments(folder), tokenizer)
        if arguments:
            said = ", ".join(f"{name} {str(value).lower()}" for name, value in arguments.items())
            notice(f"{folder} was trained with {said} for its chat template: the exported one has that as its default")
        tokenizer.chat_template = exported_template(tokenizer.chat_template, arguments)
    return tokenizer


def exported_template(template: Any, arguments: TemplateArguments) -> Any:
    """A template, or several by name, with arguments as defaults."""
    if not arguments or not template:
        return template
    if isinstance(template, dict):
        return {name: with_defaults(text, arguments) for name, text in template.items()}
    return with_defaults(template, arguments)
