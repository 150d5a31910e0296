"""What the chat template was given when a model was trained, as its `hftune.json` says."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from hftune.checkpoints.manifest import read_manifest
from hftune.logging import notice
from hftune.template_arguments import FIELD, FLAG, TemplateArguments, give_arguments, parse_arguments, readable

Tokenizer = TypeVar("Tokenizer", bound=PreTrainedTokenizerBase)


def recorded_arguments(folder: str | Path | None) -> TemplateArguments:
    """The arguments with which a folder's model was trained; {} where its manifest has none.

    Raises:
        ManifestError: It has something else there.
    """
    recorded = ((read_manifest(folder) or {}).get("tokenizer") or {}).get(FIELD)
    return parse_arguments(recorded, f"{folder}: tokenizer.{FIELD}")


def give_recorded(tokenizer: Tokenizer, folder: str | Path, given: TemplateArguments | None) -> Tokenizer:
    """Have a tokenizer's template written with the arguments given, else with those that its model was trained with.

    Raises:
        ArgumentError: Given ones that the template does not read.
    """
    if given is not None:
        return give_arguments(tokenizer, given)
    found = readable(recorded_arguments(folder), tokenizer)
    if found:
        say_recorded(found, folder)
    return give_arguments(tokenizer, found)


def say_recorded(arguments: TemplateArguments, folder: str | Path | None) -> None:
    """Say which arguments come from a manifest."""
    said = ", ".join(f"{name} {str(value).lower()}" for name, value in arguments.items())
    notice(f"{folder} was trained with {said} for its chat template, so it is used here ({FLAG} '{{}}' for none)")
