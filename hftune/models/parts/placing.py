"""Which parameter of a model a stored tensor is, by transformers' rules and the prefixes found in the index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from hftune.models.parts.language_part import Shape, key_mapping, own_name, stored_prefixes

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Place:
    """Where a stored tensor belongs.

    Args:
        parameter: The name in memory.
        pattern: The rule by which it is one of several that make the parameter; None: it is the parameter.
        numbers: In its name, which tell it from the others of that rule: layer and expert.
    """

    parameter: str
    pattern: str | None = None
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """How a model's parameters are stored.

    Args:
        prefixes: On disk, to the model's own.
        renamings: One stored tensor to one parameter.
        converters: Several to one.
    """

    prefixes: dict[str, str]
    renamings: list[WeightRenaming]
    converters: list[WeightConverter]


def rules_for(model: PreTrainedModel, stored: Mapping[str, Shape | None]) -> Rules:
    """The rules under which a checkpoint stores a model.

    Args:
        model: On any device.
        stored: Names on disk with their shapes.
    """
    prefixes = stored_prefixes(model, stored)
    rules = get_model_conversion_mapping(model, key_mapping(prefixes) or None)
    return Rules(
        prefixes,
        [rule for rule in rules if isinstance(rule, WeightRenaming)],
        [rule for rule in rules if isinstance(rule, WeightConverter)],
    )


def places(model: PreTrainedModel, stored: Mapping[str, Shape | None]) -> dict[str, Place]:
    """The place of each stored tensor that belongs to a model; what other parts are made of is left out."""
    parameters = model.state_dict()
    return {name: place for name, place in _all_places(model, stored) if place.parameter in parameters}


def without_place(model: PreTrainedModel, stored: Mapping[str, Shape | None]) -> set[str]:
    """What other parts' tensors are called where transformers reports them: by their names, and by its rules'."""
    parameters = model.state_dict()
    others = {name: place.parameter for name, place in _all_places(model, stored) if place.parameter not in parameters}
    return {*others, *others.values()}


def _all_places(model: PreTrainedModel, stored: Mapping[str, Shape | None]) -> Iterator[tuple[str, Place]]:
    rules, parameters = rules_for(model, stored), model.state_dict()
    for name in stored:
        target, pattern = rename_source_key(
            name, rules.renamings, rules.converters, model.base_model_prefix, parameters
        )
        numbers = () if pattern is None else tuple(_NUMBERS.findall(own_name(name, rules.prefixes)))
        yield name, Place(target, pattern, numbers)
