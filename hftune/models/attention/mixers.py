"""Layers that carry a state from token to token (gated delta rule, Mamba, short convolutions), and where they end it.

Such a layer mixes tokens by other ways than attention, so that no mask keeps documents of a row apart in it. Its
kernels may take the borders of documents; without them it is called with rows of one document each.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import GradientCheckpointingLayer

from hftune.compat.installing import replace_method, usable
from hftune.models.attention.isolation import MIXERS
from hftune.models.attention.unfolding import Group, Unfolding

CACHES = {"past_key_values", "past_key_value", "cache_params", "layer_past", "past_states", "state", "cache"}
"""What transformers' modules call the memory of earlier tokens, which they take only where they mix tokens."""

BORDERS = {"cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "max_length_q", "max_length_k", "seq_idx"}
"""Arguments that tell where documents in a row begin; torch's own path of a mixer refuses them."""

_ATTENTION_TABLE = "ALL_ATTENTION_FUNCTIONS"
"""The name under which transformers' models look up their attention: it is given masks, and keeps to them."""

_KERNEL_CHOICE = "transformers.integrations.hub_kernels.use_kernel_func_from_hub_with_fallback"

_ONE_TOKEN = ("update", "recurrent")
"""In names of kernels that are called for a single new token, which training never does."""


def mixers_of(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that mix tokens along a row, and are no attention of transformers' interface."""
    # A whole layer hands its cache on.
    parts = [(name, part) for name, part in model.named_modules() if name and not _is_layer(part)]
    takers = {name for name, part in parts if takes_cache(part)}
    inner = {name for name in takers if not any(_within(other, name) for other in takers)}
    found = {name for name in inner if not is_attention(model.get_submodule(name))}
    # A convolution's module may take no cache (RecurrentGemma).
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d):
            found.add(name.rpartition(".")[0])
    return [model.get_submodule(name) for name in sorted(found) if not any(_within(name, other) for other in found)]


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, GradientCheckpointingLayer)


def _within(name: str, other: str) -> bool:
    return name.startswith(f"{other}.")


def takes_cache(module: nn.Module) -> bool:
    """Whether its forward pass takes a memory of earlier tokens."""
    return not CACHES.isdisjoint(inspect.signature(type(module).forward).parameters)


def is_attention(module: nn.Module) -> bool:
    """Whether it looks up its attention in transformers' table."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and _ATTENTION_TABLE in code.co_names


def kernels_take_borders(mixer: nn.Module) -> bool:
    """Whether all kernels that a mixer calls for a row are installed, and each has an argument for borders."""
    if not usable(_KERNEL_CHOICE):
        return False
    forward = inspect.unwrap(type(mixer).forward)
    kernels = [forward.__globals__.get(name) for name in forward.__code__.co_names]
    found = [
        _kernel_borders(function)
        for name, function in zip(forward.__code__.co_names, kernels, strict=True)
        if callable(function) and not any(word in name for word in _ONE_TOKEN)
    ]
    known = [takes for takes in found if takes is not None]
    return bool(known) and all(known)


def _kernel_borders(function: Callable[..., Any]) -> bool | None:
    """Whether a function is a kernel with an argument for borders; None where it stands for no kernel."""
    if not hasattr(function, "__wrapped__") or not hasattr(function, "__code__"):
        return None
    # transformers chooses between a package's kernel and its own path where it defines the function, and says only in
    # the variables of that function what it chose and which arguments it hands on.
    inside = inspect.getclosurevars(function).nonlocals
    if "is_new_implementation" not in inside:
        return None
    return bool(inside["is_new_implementation"]) and not BORDERS.isdisjoint(inside.get("applicable_params", ()))


def call_by_documents(mixer: nn.Module, documents: Any) -> None:
    """Have a mixer end its state where a document ends, in place.

    Args:
        documents: A `Documents`, which says what the row holds that is computed.
    """
    original = type(mixer).forward
    takes = inspect.signature(original).parameters.values()
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes)
    has_kernels = open_ended and kernels_take_borders(mixer)

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        now: Any = self.hftune_documents
        row = now.row
        several = now.way == MIXERS and row is not None and row.has_several
        if several and has_kernels and now.trusts_kernels and _row(args, kwargs).is_cuda:
            return original(self, *args, **{**kwargs, **row.for_kernels})
        # Where no kernel takes them, even the borders of a single document are refused.
        plain = {name: value for name, value in kwargs.items() if name not in BORDERS}
        if several:
            return by_documents(functools.partial(original, self), row.unfolding, args, plain)
        return original(self, *args, **plain)

    # Of the object, so that a copy of the model has a copy of it.
    mixer.hftune_documents = documents
    replace_method(mixer, "forward", forward)


def _row(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    values = (*args, *kwargs.values())
    first: torch.Tensor = next(value for value in values if isinstance(value, torch.Tensor))
    return first


def by_documents(
    function: Callable[..., Any], unfolding: Unfolding, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function of rows with rows of one document each, and put together what it gives.

    Args:
        args, kwargs: Tensors (1, tokens, ...) among them, also in tuples, are taken apart; all else is handed on.

    Returns:
        Tensors of the function's rows as (1, tokens, ...); of anything else what the last call gave.
    """
    outputs = []
    for group in unfolding.groups:
        mine, named = (_taken_apart(unfolding, group, values) for values in (args, kwargs))
        outputs.append(function(*mine, **named))
    if isinstance(outputs[-1], tuple):
        return tuple(_put_together(unfolding, list(parts)) for parts in zip(*outputs, strict=True))
    return _put_together(unfolding, outputs)


def _taken_apart(unfolding: Unfolding, group: Group, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _taken_apart(unfolding, group, one) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_taken_apart(unfolding, group, one) for one in value)
    return group.unfold(value) if unfolding.reads(value) else value


def _put_together(unfolding: Unfolding, parts: list[Any]) -> Any:
    whole = all(group.holds(part) for group, part in zip(unfolding.groups, parts, strict=True))
    return unfolding.fold(parts) if whole else parts[-1]
