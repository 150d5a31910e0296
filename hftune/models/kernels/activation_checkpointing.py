"""Activation checkpointing at one place for all stages: whole layers, or parts of them, some layers or all.

transformers and TRL switch checkpointing on and off in many places (before training, around sampling, around reference
passes), and TRL does so with options that torch's `checkpoint` does not know. All of them end in one method of the
model, which is replaced here, on the model itself: it knows what was asked for and needs no options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint
from transformers import GradientCheckpointingLayer, PreTrainedModel

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.recomputation import ATTENTION, FULL, MLP, Recomputation
from hftune.arguments.training import StageArguments
from hftune.compat.installing import replace_method, require
from hftune.errors import ArgumentError
from hftune.logging import notice
from hftune.models.structure import decoder_layers

# What architectures call the attention and the MLP of a layer.
_CHILDREN: dict[str, tuple[str, ...]] = {
    FULL: (),
    ATTENTION: ("self_attn", "attention", "attn", "self_attention", "linear_attn"),
    MLP: ("mlp", "feed_forward", "block_sparse_moe", "moe"),
}


def not_recomputable(model: PreTrainedModel, plan: Recomputation) -> ArgumentError | None:
    """Why this architecture cannot recompute what the plan says; None where it can."""
    name, place = type(model).__name__, "--activation_checkpointing"
    off = "use --activation_checkpointing full or none"
    if not model.supports_gradient_checkpointing:
        return ArgumentError(f"{name} cannot recompute activations", place=place, fix=f"add {place} none")
    layers = decoder_layers(model)
    try:
        chosen = plan.layers(len(layers))
    except ArgumentError as problem:
        return problem
    if plan.parts == (FULL,) and len(chosen) == len(layers):
        return None
    if not layers or not all(isinstance(layer, GradientCheckpointingLayer) for layer in layers):
        return ArgumentError(f"{name} recomputes all of its layers as a whole, or none", place=place, fix=off)
    for part in plan.parts:
        if part != FULL and not all([*_members(layers[number], part)] for number in chosen):
            return ArgumentError(f"hftune finds no {part} in the layers of {name}", place=place, fix=off)
    return None


def _members(layer: nn.Module, part: str) -> Iterator[nn.Module]:
    """The modules of a layer that are its attention, or its MLP; of a whole layer none."""
    children = (getattr(layer, name, None) for name in _CHILDREN[part])
    yield from (child for child in children if isinstance(child, nn.Module))


# What architectures call the argument that holds keys and values of earlier tokens.
_CACHES = ("past_key_values", "past_key_value", "layer_past", "cache_params")


def recompute_as_asked(
    adapted: PreTrainedModel | PeftModel, adapter_args: AdapterArguments, training_args: StageArguments
) -> None:
    """`recompute` what `--activation_checkpointing` and its like say."""
    assert training_args.recomputation is not None
    reentrant = adapter_args.use_peft and training_args.zero_stage == 3
    # Adapters under ZeRO-3 need reentrant checkpointing (TRL issue 2514). TRL sets it under the older of two names once
    # the Trainer has read the newer one (transformers 5.23), so both are set here.
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        if reentrant and hasattr(training_args, name):
            setattr(training_args, name, {**(getattr(training_args, name) or {}), "use_reentrant": True})
    recompute(adapted, training_args.recomputation, reentrant=reentrant, on_cpu=training_args.use_cpu)


def recompute(
    model: PreTrainedModel | PeftModel, plan: Recomputation, *, reentrant: bool = False, on_cpu: bool = True
) -> None:
    """Have `model` recompute what the plan says, from the moment that checkpointing is enabled on it.

    Args:
        model: As it will be trained, the adapter included.
        plan: What, in which layers, and where the inputs of recomputing are kept.
        reentrant: Use torch's older way, which adapters under ZeRO-3 need; the plan's own choice counts for more.
        on_cpu: Whether training runs on the CPU, where nothing can be offloaded.

    Raises:
        ArgumentError: The architecture does not let the parts be recomputed, or has no such layer.
    """
    plain: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    problem = not_recomputable(plain, plan)
    if problem is not None:
        raise problem
    if plan.offload and on_cpu:
        notice("--activation_checkpointing_offload has no effect: on a CPU all activations are in its memory")
    plain.recomputing = Recomputing(plain, plan, reentrant=reentrant, offload=plan.offload and not on_cpu)
    # Off until the Trainer enables it, whatever the config or an earlier stage has left on.
    plain.recomputing.switch(plain, on=False)
    require("transformers.modeling_utils.PreTrainedModel._set_gradient_checkpointing")
    replace_method(plain, "_set_gradient_checkpointing", _switch)


class Recomputing:
    """What a model recomputes; it is off until `switch`.

    Args:
        model: The plain model, not an adapter around it.
        plan: See `recompute`.
        reentrant: See `recompute`.
        offload: Whether inputs of recomputing go to pinned memory of the machine.
    """

    def __init__(self, model: nn.Module, plan: Recomputation, *, reentrant: bool, offload: bool) -> None:
        layers = decoder_layers(model)
        chosen = [layers[number] for number in plan.layers(len(layers))]
        self.options = {"use_reentrant": reentrant, **plan.options}
        self.offload = offload
        self.whole = chosen if plan.parts == (FULL,) else []
        # Whether the layers' own class knows how to recompute itself, as in most architectures by now.
        self.in_layers = all(isinstance(layer, GradientCheckpointingLayer) for layer in layers) and bool(layers)
        self.parts = [module for layer in chosen for part in plan.parts for module in _parts(layer, part)]

    def switch(self, model: nn.Module, *, on: bool) -> None:
        """Recompute from the next forward pass on, or no more."""
        flagged: list[Any] = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]
        for module in flagged:
            # A model carries the flag next to its layers, and drops its cache in training where it is on. In older
            # architectures only the model has it, and recomputes its layers itself.
            self._set(module, on=on and (isinstance(module, PreTrainedModel) or not self.in_layers))
        for module in [*self.whole, *self.parts]:
            self._set(module, on=on)

    def _set(self, module: Any, *, on: bool) -> None:
        module.gradient_checkpointing = on
        module._gradient_checkpointing_func = self

    def __call__(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """`function(*inputs)`, of which only the inputs are kept for the backward pass."""
        with self._kept():
            return checkpoint(function, *inputs, **self.options)

    def _kept(self) -> AbstractContextManager[Any]:
        if not self.offload:
            return nullcontext()
        device = torch.accelerator.current_accelerator()
        return save_on_cpu(pin_memory=device is not None, device_type=device.type if device else "cpu")


def _switch(
    self: nn.Module, enable: bool = True, gradient_checkpointing_func: Any = None, every_n_layers: int = 1
) -> None:
    """Takes the place of a model's `_set_gradient_checkpointing`; options are ignored, since the plan says it all."""
    recomputing: Recomputing = vars(self)["recomputing"]
    recomputing.switch(self, on=enable)


def _parts(layer: nn.Module, part: str) -> Iterator[nn.Module]:
    """`_members`, whose `forward` is recomputed from now on."""
    module: Any
    for module in _members(layer, part):
        # Not `__call__`: the module's hooks, ZeRO's among them, then run once, outside of what is recomputed.
        if not hasattr(module, "forward_as_it_was"):
            module.forward_as_it_was = module.forward
            replace_method(module, "forward", _recomputed_forward)
        yield module


def _recomputed_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # By `self` and not by a closure: a copy of the model must not run the original's modules.
    set_here = vars(self)
    forward = set_here["forward_as_it_was"]
    if not (set_here["gradient_checkpointing"] and self.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    # A cache would be written a second time when recomputing.
    for name in _CACHES:
        if kwargs.get(name) is not None:
            kwargs[name] = None
    # Reentrant checkpointing passes gradients through positional arguments only.
    if not args:
        args = (kwargs.pop("hidden_states"),)
    return set_here["_gradient_checkpointing_func"](partial(forward, **kwargs), *args)
