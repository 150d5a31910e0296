"""From the tensors that peft saves to updates of the base's parameters; and whether they fit it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hftune.errors import ManifestError, UserError
from hftune.merging.adapters import AdaptedModule, Adapter
from hftune.merging.skeleton import BaseTensors, Unsupported
from hftune.merging.updates import Update, add_bias, low_rank, read_float, replace, replace_rows

Updates = dict[str, list[Update]]
"""Parameter name to what one adapter does to it, in order."""

_OTHER_MODEL = "give the model that the adapter was trained on"


@dataclass
class Changes:
    """What all adapters together do: level by level, for each adapter its weight and its updates."""

    levels: list[list[tuple[float, Updates]]]

    def parameters(self) -> list[str]:
        """Every parameter that some adapter changes, in order."""
        return list(dict.fromkeys(name for level in self.levels for _, updates in level for name in updates))

    def of(self, parameter: str) -> list[list[tuple[float, list[Update]]]]:
        """The levels that change a parameter."""
        levels = [
            [(weight, updates[parameter]) for weight, updates in level if parameter in updates] for level in self.levels
        ]
        return [level for level in levels if level]

    def shape(self, parameter: str, before: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a parameter afterwards."""
        updates = [update for level in self.of(parameter) for _, found in level for update in found]
        return _shape_after(updates, before)


def _shape_after(updates: list[Update], before: tuple[int, ...]) -> tuple[int, ...]:
    return next((update.shape for update in reversed(updates) if update.shape), before)


def updates_of(adapter: Adapter, base: BaseTensors) -> Updates:
    """What one adapter does to each parameter.

    Raises:
        Unsupported: A tensor that hftune does not know how to fold.
        ManifestError: A tensor for a parameter that the base does not have.
    """
    found: Updates = {}
    # First what replaces a tensor: LoRA upon a layer that was also trained in full was computed from the new values.
    for name, stored in adapter.replaced.items():
        found.setdefault(_in_base(name, base), []).append(replace(stored))
    for module in adapter.modules:
        for parameter, update in _module_updates(adapter, module, base):
            found.setdefault(parameter, []).append(update)
    return found


def _in_base(name: str, base: BaseTensors) -> str:
    if base.shape(name) is not None:
        return name
    if ".experts." in name:
        # Adapters of transformers 4 name each expert; peft knows which rows of a fused parameter they are.
        raise Unsupported(f"its {name} belongs to no tensor of the base")
    raise ManifestError(
        f"the adapter does not fit the base, which has no {name}", place="--peft_model_path", fix=_OTHER_MODEL
    )


def _module_updates(adapter: Adapter, module: AdaptedModule, base: BaseTensors) -> Iterator[tuple[str, Update]]:
    name, tensors = module.name, module.tensors
    if "trainable_tokens_delta" in tensors:
        rows = adapter.token_rows(name)
        if rows is not None:
            yield _in_base(module.weight, base), replace_rows(rows, tensors["trainable_tokens_delta"])
        else:
            _check_copy(adapter, module)
        return
    a, b = module.matrices
    if a is None or b is None:
        raise Unsupported(f"{name} has only one of its two low-rank matrices")
    parameter = _parameter_of(adapter, module, base)
    shape = base.shape(parameter)
    assert shape is not None
    experts = shape[0] if len(shape) == 3 else 1  # only experts are stored with three dimensions
    # peft looks patterns up by parameter where it wraps parameters, by module elsewhere.
    key = parameter if adapter.config.get("target_parameters") and experts > 1 else name
    scale = adapter.scale(key, a.shape[0] // experts)
    transposed, magnitude = _is_transposed(module, base, experts), tensors.get("lora_magnitude_vector")
    yield parameter, low_rank(a, b, scale, experts=experts, transposed=transposed, magnitude=magnitude)
    if "lora_B.bias" in tensors:
        yield _in_base(f"{name}.bias", base), add_bias(tensors["lora_B.bias"], scale)


def _parameter_of(adapter: Adapter, module: AdaptedModule, base: BaseTensors) -> str:
    """Which parameter a pair of matrices is for: the module's weight, or the one that `target_parameters` names."""
    asked = adapter.config.get("target_parameters") or []
    found = base.module(module.name) if asked else None
    if found is not None:
        own = [f"{module.name}.{name}" for name, _ in found.named_parameters(recurse=False)]
        targeted = [name for name in own if any(name == key or name.endswith(f".{key}") for key in asked)]
        # peft wraps a module once per parameter, in the order of its parameters, so the last one is outermost.
        if module.depth < len(targeted):
            return targeted[len(targeted) - 1 - module.depth]
    return _in_base(module.weight, base)


def _is_transposed(module: AdaptedModule, base: BaseTensors, experts: int) -> bool:
    if module.is_embedding:
        return True
    found = base.module(module.name)
    # transformers marks experts that are stored as (in, out); linear modules that are so have a class of their own.
    return bool(getattr(found, "is_transposed", False)) if experts > 1 else type(found).__name__ == "Conv1D"


def _check_copy(adapter: Adapter, module: AdaptedModule) -> None:
    """Under ZeRO-3 peft saves the rows of a tied head next to those of the embedding, which they are."""
    own = read_float(module.tensors["trainable_tokens_delta"])
    others = [other.tensors.get("trainable_tokens_delta") for other in adapter.modules if other is not module]
    if not any(other is not None and torch.equal(read_float(other), own) for other in others):
        raise Unsupported(f"its {module.name} has rows of its own that its config does not name")


# --- shapes ----------------------------------------------------------------------------------------------------------


def misfits(adapter: Adapter, updates: Updates, base: BaseTensors, grown: Updates) -> Iterator[UserError]:
    """Updates whose shape is not that of the parameter they are for. One problem names the first.

    Args:
        adapter: The adapter.
        updates: What it does.
        base: The base.
        grown: Parameters that had grown before it was trained.
    """

    def shape(name: str) -> tuple[int, ...] | None:
        return grown[name][0].shape if name in grown else base.shape(name)

    wrong = [text for name, found in updates.items() for text in _misfit(name, found, shape(name))]
    wrong += [text for module in adapter.modules for text in _module_misfit(module, shape(module.weight), updates)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        yield ManifestError(
            f"the adapter in {adapter.folder} does not fit the base: {wrong[0]}{more}",
            place="--peft_model_path",
            fix=_OTHER_MODEL,
        )


def _misfit(name: str, updates: list[Update], before: tuple[int, ...] | None) -> Iterator[str]:
    for update in updates:
        after = update.shape
        if after is None or before is None or after == before:
            continue
        # Embeddings and heads may have grown with the vocabulary; nothing else may change its shape.
        if len(after) != 2 or after[1:] != before[1:] or after[0] < before[0]:
            yield f"{name} is {list(before)} in the base and {list(after)} in the adapter"


def _module_misfit(module: AdaptedModule, shape: tuple[int, ...] | None, updates: Updates) -> Iterator[str]:
    a, b = module.matrices
    if shape is None or len(shape) != 2 or a is None or b is None:
        return
    shape = _shape_after(updates.get(module.weight, []), shape)
    # Sorted, since embeddings and Conv1D are the other way round.
    if sorted((a.shape[1], b.shape[0])) != sorted(shape) or a.shape[0] != b.shape[1]:
        yield f"{module.name} is {list(shape)} in the base, its adapter has {list(b.shape)} x {list(a.shape)}"
