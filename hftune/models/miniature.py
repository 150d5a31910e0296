"""A model cut down to one layer of each kind, on tensors without data, so that a step through it takes a moment."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hftune.models.structure import checkpointed_layers


@dataclass
class Miniature:
    """A model of few layers.

    Args:
        model: On fake tensors, its layers one of each kind.
        layers: These layers.
        kinds: For every layer of the whole model, in order, which of `layers` it is like.
    """

    model: Any
    layers: list[nn.Module]
    kinds: tuple[int, ...]


def kinds_of(
    bare: PreTrainedModel, layers: Iterable[nn.Module], chosen: set[int] | None, marks: Iterable[Any]
) -> tuple[tuple[int, ...], list[int]]:
    """For each layer the number of its kind, and for each kind one layer of it.

    Two layers are alike when their parameters, what of these is trained, their kind of attention, the switches of their
    modules and their mark are, and when something before them is trained or not: without, nothing is kept for a
    backward pass.

    Args:
        bare: The whole model, on the meta device.
        layers: Its decoder layers.
        chosen: `id` of the parameters that are trained; None: all.
        marks: One a layer: what else tells them apart, such as whether it is recomputed.
    """
    types = getattr(bare.config.get_text_config(), "layer_types", None) or []
    # Once something below is trained, every layer above keeps activations for the backward pass.
    trains = _trained(bare.get_input_embeddings().parameters(), chosen)
    kinds: dict[Any, int] = {}
    numbers: list[int] = []
    examples: list[int] = []
    for number, (layer, mark) in enumerate(zip(layers, marks, strict=True)):
        shapes = tuple((name, one.shape, _trained([one], chosen)) for name, one in layer.named_parameters())
        trains = trains or any(trained for _, _, trained in shapes)
        key = (type(layer), shapes, types[number] if number < len(types) else None, _switches(layer), trains, mark)
        if key not in kinds:
            kinds[key] = len(examples)
            examples.append(number)
        numbers.append(kinds[key])
    return tuple(numbers), examples


def _switches(layer: nn.Module) -> tuple[Any, ...]:
    """The words and switches of a layer's modules, such as whose keys and values it takes; no numbers of layers."""
    return tuple(
        (path, name, value)
        for path, module in layer.named_modules()
        for name, value in sorted(vars(module).items())
        if value is None or isinstance(value, bool) or (isinstance(value, str) and value.replace("_", "").isalpha())
    )


def _trained(parameters: Iterable[torch.Tensor], chosen: set[int] | None) -> bool:
    return any(chosen is None or id(one) in chosen for one in parameters)


def cut_down(bare: PreTrainedModel, chosen: set[int] | None, marks: list[Any]) -> Miniature | None:
    """A copy with one layer of each kind, on the meta device still.

    Args:
        bare: As before when this returns.
        chosen: `id` of the parameters that are trained; None: all.
        marks: See `kinds_of`; as many as there are layers.
    """
    found = checkpointed_layers(bare)
    if found is None:
        return None
    owner, name = found
    # By its path: cut down, the decoder may be the shorter of two lists of layers.
    path = next(path for path, module in bare.named_modules() if module is owner)
    every: Any = getattr(owner, name)
    kinds, examples = kinds_of(bare, every, chosen, marks)
    # Set on the whole model first: the copy takes it over.
    for parameter in bare.parameters():
        parameter.requires_grad_(chosen is None or id(parameter) in chosen)
    try:
        setattr(owner, name, nn.ModuleList(every[number] for number in examples))
        model = copy.deepcopy(bare)
    finally:
        setattr(owner, name, every)
    _tell_config(model, examples)
    return Miniature(model, list(getattr(model.get_submodule(path), name)), kinds)


def _tell_config(model: PreTrainedModel, examples: list[int]) -> None:
    """Write the kinds of the layers into the configs, where some code looks them up.

    Their number stays that of the whole model: some have a tensor for all layers (Gemma 3n, Gemma 4), which is as wide.
    """
    count = model.config.get_text_config().num_hidden_layers
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    for config in configs.values():
        if getattr(config, "num_hidden_layers", None) != count or not hasattr(config, "vocab_size"):
            continue  # of another part, such as a vision tower
        # Past the config's own checks, which want all of these to agree at every moment.
        for name, value in config.__dict__.items():
            if isinstance(value, list) and len(value) == count:  # kinds of attention, of MLPs, of indexers
                config.__dict__[name] = [value[number] for number in examples]


def materialise(model: nn.Module, dtype_of: Callable[[str, torch.Tensor], torch.dtype | None]) -> None:
    """Replace every tensor of the meta device by one without data that says it lies on the CPU. Shared ones stay so.

    Called under a `FakeTensorMode`.

    Args:
        model: Changed.
        dtype_of: From a parameter's name and itself to the dtype that it will have; None keeps its own.
    """
    made: dict[int, torch.Tensor] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        kinds: list[tuple[dict[str, Any], bool]] = [(module._parameters, True), (module._buffers, False)]
        for tensors, is_parameter in kinds:
            for name, tensor in tensors.items():
                if tensor is None or tensor.device.type != "meta":
                    continue
                if id(tensor) not in made:
                    dtype = (
                        dtype_of(f"{prefix}.{name}".lstrip("."), tensor)
                        if tensor.is_floating_point() and is_parameter
                        else None
                    )
                    fresh = torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device="cpu")
                    made[id(tensor)] = nn.Parameter(fresh, tensor.requires_grad) if is_parameter else fresh
                tensors[name] = made[id(tensor)]
