"""The parts of a model that a run on text does not train: vision towers, audio encoders, projectors.

They are loaded with the model, frozen, get no adapter, and are saved as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from hftune.models.classes import has_parts


def other_parts(model: Any) -> list[str]:
    """Names of the outermost modules and parameters that have no share in reading and writing text; none of others.

    Args:
        model: A language model has no other parts. On any device.
    """
    config = getattr(model, "config", None)
    if config is None or not has_parts(config):
        return []
    ends = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    text = {id(part) for part in (*ends, getattr(model, "score", None)) if part is not None}
    return [] if id(model) in text else [*_without(model, "", text)]


def _without(module: nn.Module, prefix: str, text: set[int]) -> Iterator[str]:
    yield from (f"{prefix}{name}" for name, _ in module.named_parameters(recurse=False))
    for name, child in module.named_children():
        if id(child) in text:
            continue
        if any(id(part) in text for part in child.modules()):
            yield from _without(child, f"{prefix}{name}.", text)
        elif any(True for _ in child.parameters()):
            yield f"{prefix}{name}"


def is_within(name: str, parts: list[str]) -> bool:
    """Whether a module or parameter is one of these, or lies in one."""
    return f"{name}.".startswith(tuple(f"{part}." for part in parts))


def other_parameters(model: Any) -> set[int]:
    """Ids of the parameters of `other_parts`."""
    parts = other_parts(model)
    # Of a parameter that a text part shares (one table of embeddings for both) every name must be another part's.
    names = [(name, id(one)) for name, one in model.named_parameters(remove_duplicate=False)]
    return {one for name, one in names if is_within(name, parts)} - {
        one for name, one in names if not is_within(name, parts)
    }


def freeze_other_parts(model: Any) -> None:
    """Train nothing of `other_parts`."""
    frozen = other_parameters(model)
    for parameter in model.parameters():
        if id(parameter) in frozen:
            parameter.requires_grad_(False)
