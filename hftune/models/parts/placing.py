"""Which parameter of a model a stored tensor is, by transformers' rules and the prefixes found in the index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from hftune.models.parts.language_part import (
    Shape,
    has_parts,
    key_mapping,
    own_name,
    stored_name,
    stored_prefixes,
)
from hftune.models.parts.within import Within, find_within

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
        converters: Several to one, or one to several.
        within: The whole, where these are its rules and not the language model's.
    """

    prefixes: dict[str, str]
    renamings: list[WeightRenaming]
    converters: list[WeightConverter]
    within: Within | None = None

    @property
    def all(self) -> list[Any]:
        """For `from_pretrained`."""
        return [*self.renamings, *self.converters]

    def converter(self, pattern: str) -> WeightConverter:
        """The rule that has this pattern."""
        return next(rule for rule in self.converters if pattern in rule.source_patterns)

    def made(self, place: Place) -> list[str]:
        """The parameters that a stored tensor is, or is a piece of."""
        if place.pattern is None:
            return [place.parameter]
        first, *others = (pattern.replace("\\", "") for pattern in self.converter(place.pattern).target_patterns)
        return [place.parameter, *(place.parameter.replace(first, one) for one in others if first in place.parameter)]

    def stored_name(self, own: str) -> str:
        """Under which name a parameter is stored that the base does not have."""
        if self.within is None:
            return stored_name(own, self.prefixes)
        name = self.within.name_of(own)
        for rule in reversed(self.used):
            if isinstance(rule, WeightRenaming):
                name, _ = rule.reverse_transform().rename_source_key(name)
        return name

    @property
    def used(self) -> list[Any]:
        """The rules of the class that names of the checkpoint were of; after these were asked for their places."""
        last = -1 - len(self.within.prefixes) if self.within is not None else None
        first = 0 if self.within is not None else len(self.prefixes)
        return [rule for rule in (*self.renamings[first:last], *self.converters) if rule.was_used()]


def rules_for(
    model: PreTrainedModel, stored: Mapping[str, Shape | None], whole: PreTrainedConfig | None = None
) -> Rules:
    """The rules under which a checkpoint stores a model.

    Its class's own, with the prefixes that the index shows; where these leave parameters without a tensor, and those of
    the whole leave fewer, the whole's.

    Args:
        model: On any device.
        stored: Names on disk with their shapes.
        whole: The config of all parts, where the model is one of several.
    """
    prefixes = stored_prefixes(model, stored)
    own = _divided(get_model_conversion_mapping(model, key_mapping(prefixes) or None), prefixes)
    if whole is None or not has_parts(whole):
        return own
    # One layer stands for all: names are tens of thousands where experts are stored one by one.
    some = {_NUMBERS.sub("#", name): name for name in stored}
    sample = {name: stored[name] for name in some.values()}
    filled = _filled(own, model, sample)
    if len(filled) == len({_NUMBERS.sub("#", name) for name in model.state_dict()}):
        return own
    within = find_within(model, whole)
    if within is None or len(_filled(_rules_within(within), model, sample)) <= len(filled):
        return own
    return _rules_within(within)


def _rules_within(within: Within) -> Rules:
    return _divided(within.rules(), {}, within)


def _divided(rules: list[Any], prefixes: dict[str, str], within: Within | None = None) -> Rules:
    return Rules(
        prefixes,
        [rule for rule in rules if isinstance(rule, WeightRenaming)],
        [rule for rule in rules if isinstance(rule, WeightConverter)],
        within,
    )


def _filled(rules: Rules, model: PreTrainedModel, stored: Mapping[str, Shape | None]) -> set[str]:
    """The parameters that get a tensor by these rules, without the numbers in their names."""
    parameters = model.state_dict()
    found: set[str] = set()
    for name, place in _all_places(model, stored, rules):
        if place.parameter in parameters:
            whole = place.pattern is None and stored[name] is not None
            if not whole or stored[name] == tuple(parameters[place.parameter].shape):
                found |= {*rules.made(place)} & parameters.keys()
    tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
    pairs = [order for pair in tied.items() for order in (pair, pair[::-1])]
    return {_NUMBERS.sub("#", name) for name in found | {one for one, other in pairs if other in found}}


def places(
    model: PreTrainedModel, stored: Mapping[str, Shape | None], whole: PreTrainedConfig | None = None
) -> dict[str, Place]:
    """The place of each stored tensor that belongs to a model; what other parts are made of is left out."""
    return places_by(rules_for(model, stored, whole), model, stored)


def places_by(rules: Rules, model: PreTrainedModel, stored: Mapping[str, Shape | None]) -> dict[str, Place]:
    """`places` by known rules."""
    parameters = model.state_dict()
    return {name: place for name, place in _all_places(model, stored, rules) if place.parameter in parameters}


def without_place(
    model: PreTrainedModel, stored: Mapping[str, Shape | None], whole: PreTrainedConfig | None = None
) -> set[str]:
    """What other parts' tensors are called where transformers reports them: by their names, and by its rules'."""
    parameters, rules = model.state_dict(), rules_for(model, stored, whole)
    all_places = _all_places(model, stored, rules)
    others = {name: place.parameter for name, place in all_places if place.parameter not in parameters}
    return {*others, *others.values()}


def _all_places(
    model: PreTrainedModel, stored: Mapping[str, Shape | None], rules: Rules
) -> Iterator[tuple[str, Place]]:
    parameters = model.state_dict()
    for name in stored:
        target, pattern = rename_source_key(
            name, rules.renamings, rules.converters, model.base_model_prefix, parameters
        )
        if target not in parameters and name in parameters:
            # A rule means other modules of such a name (DeepSeek OCR 2): transformers reads it as it is.
            target, pattern = name, None
        numbers = () if pattern is None else tuple(_NUMBERS.findall(own_name(name, rules.prefixes)))
        yield name, Place(target, pattern, numbers)
