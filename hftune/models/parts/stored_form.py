"""Trained parameters in the pieces that their base stores, where the language model alone is stored in others.

Experts are one tensor in memory and one each on disk, queries, keys and values three and one: whatever rules of
transformers' made the parameters of the base's tensors are turned round.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import WeightConverter, dot_natural_key, revert_weight_conversion

from hftune.errors import ManifestError
from hftune.models.parts.language_part import stored_name
from hftune.models.parts.placing import Place, Rules, places_by, rules_for
from hftune.opening.safetensors_file import open_tensors
from hftune.weight_files import StoredTensor, file_tensors

_NUMBER = re.compile(r"\d+")
CONVERTED = "converted-{}.safetensors"
"""Files of tensors that were made anew, removed when all pieces are written."""


@dataclass(frozen=True)
class Placed:
    """The tensors of a folder, and which parameters of a language model they are.

    Args:
        tensors: By their names.
        rules: Under which they are stored.
        places: Of those that belong to the language model.
    """

    tensors: Mapping[str, StoredTensor]
    rules: Rules
    places: Mapping[str, Place]


def placed(model: PreTrainedModel, tensors: Mapping[str, StoredTensor], whole: PreTrainedConfig | None) -> Placed:
    """Where the tensors of a folder belong.

    Args:
        model: The language model, on any device.
        tensors: Of the folder.
        whole: The config of all parts, where it holds several.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    rules = rules_for(model, shapes, whole)
    return Placed(tensors, rules, places_by(rules, model, shapes))


def in_stored_form(
    folder: Path, model: PreTrainedModel, here: Placed, there: Placed
) -> tuple[dict[str, StoredTensor], set[str]]:
    """Write what has no tensor of its own among the saved ones into files of the folder, a layer at a time.

    Args:
        folder: For the files, which `write_pieces` removes.
        model: The language model, on the meta device.
        here: What was saved after training.
        there: The base.

    Returns:
        The new tensors by the base's names; the names of the saved ones that they are made from.

    Raises:
        ManifestError: The rules do not give the base's tensors.
    """
    wanted = _unmatched(here, there)
    layers: dict[str, set[str]] = defaultdict(set)
    for name in wanted:
        made = there.rules.made(there.places[name])
        layer = _NUMBER.search(made[0])
        layers[layer[0] if layer else made[0]] |= {*made}
    found: dict[str, StoredTensor] = {}
    used: set[str] = set()
    made_of = {name: {*here.rules.made(place)} for name, place in here.places.items()} if wanted else {}
    for number, parameters in enumerate(layers.values()):
        sources = [name for name, made_here in made_of.items() if parameters & made_here]
        values = {key: value for key, value in _in_memory(model, here, sources).items() if key in parameters}
        tensors = _fitted(_reversed(model, there.rules, values), there)
        file = folder / CONVERTED.format(number)
        save_file({name: tensors[name].contiguous() for name in tensors if name in wanted}, file)
        found |= file_tensors(file)
        used |= {*sources}
    if missing := wanted - found.keys():
        raise ManifestError(
            f"no rule of transformers' gives {sorted(missing)[0]}, which the base stores",
            place=str(folder),
            fix="please report it",
        )
    return found, used


def _unmatched(here: Placed, there: Placed) -> set[str]:
    """Names of the base whose parameters were saved, and that no saved tensor is."""
    by_place = {place: name for name, place in here.places.items()}
    parameters = {one for place in here.places.values() for one in here.rules.made(place)}
    found = set()
    for name, place in there.places.items():
        own = by_place.get(place)
        apart = own is None and parameters & {*there.rules.made(place)}
        cut = own is not None and place.pattern is not None
        if apart or (cut and here.tensors[str(own)].shape != there.tensors[name].shape):
            found.add(name)
    return found


def _in_memory(model: PreTrainedModel, here: Placed, sources: list[str]) -> dict[str, Tensor]:
    """The parameters that saved tensors are, or make."""
    values: dict[str, Tensor] = {}
    making: dict[str, WeightConverter] = {}
    for name in sorted(sources, key=dot_natural_key):
        with open_tensors(here.tensors[name].file) as file:
            tensor = file.get_tensor(name)
        place = here.places[name]
        if place.pattern is None:
            values[place.parameter] = tensor
        else:
            converter = making.setdefault(place.parameter, deepcopy(here.rules.converter(place.pattern)))
            converter.add_tensor(place.parameter, name, place.pattern, tensor)
    for parameter, converter in making.items():
        values |= _single(converter.convert(parameter, model=model, config=model.config))
    return values


def _single(found: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}


def _reversed(model: PreTrainedModel, rules: Rules, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters as the base stores them, by its names."""
    within = rules.within
    owner: Any = model if within is None else within.skeleton
    named = values if within is None else {within.name_of(name): value for name, value in values.items()}
    before = getattr(owner, "_weight_conversions", None)
    owner._weight_conversions = rules.used
    try:
        found = revert_weight_conversion(owner, dict(named))
    finally:
        owner._weight_conversions = before
    return found if within is not None else {stored_name(name, rules.prefixes): one for name, one in found.items()}


def _fitted(tensors: dict[str, Tensor], there: Placed) -> dict[str, Tensor]:
    """Pieces that were joined end to end as long as the base's: turned round, they would be equally long."""
    rules, places, stored = there.rules, there.places, there.tensors
    joined: dict[str, list[str]] = defaultdict(list)
    for name in tensors:
        place = places.get(name)
        if place is not None and place.pattern is not None:
            joined[place.parameter].append(name)
    for names in joined.values():
        rule = rules.converter(str(places[names[0]].pattern))
        if len(rule.operations) != 1 or all(tuple(tensors[n].shape) == stored[n].shape for n in names):
            continue
        names.sort(key=lambda name: rule.source_patterns.index(str(places[name].pattern)))
        dim = getattr(rule.operations[0], "dim", 0)
        whole = torch.cat([tensors[name] for name in names], dim)
        sizes = [stored[name].shape[dim] for name in names]
        # Rows that came with new tokens are the last.
        sizes[-1] += whole.shape[dim] - sum(sizes)
        if sizes[-1] > 0:
            tensors |= zip(names, whole.split(sizes, dim), strict=True)
    return tensors
