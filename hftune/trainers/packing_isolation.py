"""The proof, before the first step, that documents in a row do not see each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hftune.data.batches.collators import FlatCollator
from hftune.distributed import zero
from hftune.distributed.ds_config import asks_for_compiling
from hftune.errors import ArgumentError
from hftune.models.blocks import checkpointed_layers
from hftune.models.kernels.float8_support import without_float8

Read = Callable[[Any, dict[str, Any]], torch.Tensor]


@dataclass(frozen=True)
class Probe:
    """How closely is looked.

    Args:
        lengths: Tokens of the two documents.
        layers: So many of the first decoder layers are asked, and more until one of each kind is among them; 0: all.
        tolerance: How far logits may move, as a share of the largest one.
    """

    lengths: tuple[int, int]
    layers: int
    tolerance: float


LONG = Probe((100, 156), layers=0, tolerance=0.02)
"""More than a block of any kernel in all, with the border inside a block. A mask that leaks moves logits by 0.3 to 1.5
of the largest (measured on SmolLM2 and random models); bf16 rounds to 0.004, where the order of sums depends on the
other document at all."""

SHORT = Probe((8, 16), layers=4, tolerance=0.02)
"""Where no kernel works in blocks: a run on a CPU would wait a second for the other. A leak moves SmolLM2's logits by
0.07 after one layer and by 0.12 after four; without one, they did not move at all, in float32 and in bf16."""

EXACT = 0.002
"""In float32 throughout on a CPU, where only the order of sums can differ. A mixture of experts adds others' tokens to
a product and moves by less than a millionth."""

INT8 = 0.06
"""At least so much tolerance for a base in LLM.int8(), which computes columns with outliers apart, whichever document
has them: SmolLM2's logits moved by 0.04 after all layers, by nothing after four."""

INSISTS = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What the code of a model may raise that wants all its layers."""

NUMBERS = {"layer_idx", "layer_id", "layer_number"}
"""Attributes that number a layer, and do not tell its kind."""


@contextmanager
def uncompiled_and_unrounded(model: nn.Module, args: Any) -> Iterator[None]:
    """For a proof: inside, nothing is compiled for its odd lengths, and FP8 does not round one document by another.

    A kernel that is compiled by itself (flex_attention) is, and DeepCompile's model cannot run otherwise.

    Args:
        args: Those of the run.
    """
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    deep = args.ds_resolved is not None and asks_for_compiling(args.ds_resolved)
    eagerly = args.torch_compile and not deep and attention != "flex_attention"
    with without_float8(model), torch.compiler.set_stance("force_eager") if eagerly else nullcontext():
        yield


@torch.no_grad()
def prove_isolation(
    model: Any,
    vocabulary: int,
    attention: str | None,
    device: torch.device,
    read: Read | None = None,
    autocast: bool = True,
) -> None:
    """Change the first of two documents in a row, and compare the logits of the second.

    Whatever stands between the borders and the softmax (a model's own mask, a kernel, a patch) is covered: a rule about
    names would not be. It costs two forward passes of 256 tokens a run; on a CPU of 24 tokens through a few layers.
    Every rank must take part.

    Args:
        model: As it is trained, an engine or a wrapper included.
        vocabulary: Token ids from 0 to below this are used.
        read: From model and inputs to (1, tokens, outputs); None: the model's logits.
        autocast: Whether it may compute in 16 bits, whatever its parameters are in.

    Raises:
        ArgumentError: The second document noticed.
    """
    was_training = model.training
    model.eval()  # dropout is no leak
    read = read or _logits
    probe = SHORT if device.type == "cpu" and attention != "flex_attention" else LONG
    try:
        with _first_layers(model, probe.layers) if probe.layers else nullcontext():
            before, after = (_logits_of_second(model, vocabulary, shift, device, read, probe) for shift in (1, 7))
    except INSISTS:  # a fault that is the model's own it will repeat
        before, after = (_logits_of_second(model, vocabulary, shift, device, read, probe) for shift in (1, 7))
    model.train(was_training)
    zero.reset_fetch_order(model)
    noticed = (before - after).abs().max() / before.abs().max().clamp(min=1e-6)
    exact = device.type == "cpu" and not autocast and _is_float32(_plain(model))
    if float(noticed) > _tolerance(_plain(model), probe, exact):
        raise ArgumentError(
            f"documents in a row see each other in {type(_plain(model)).__name__} with attention {attention}",
            place="--packing / --padding_free / --attn_implementation",
            fix="use --attn_implementation hftune_segments, or train without --packing (for text: --packing False)",
        )


def _tolerance(model: Any, probe: Probe, exact: bool) -> float:
    if getattr(model, "is_loaded_in_8bit", False):
        return max(probe.tolerance, INT8)
    return EXACT if exact else probe.tolerance


def _is_float32(model: nn.Module) -> bool:
    return all(parameter.dtype == torch.float32 for parameter in model.parameters())


@contextmanager
def _first_layers(model: Any, least: int) -> Iterator[None]:
    """Inside, the model ends after its first layers: `least` of them, or more for one of each kind.

    It stays whole where its layers cannot be told, and under ZeRO-3, which learns the order of the modules as they run.
    """
    plain = _plain(model)
    found = None if zero.is_any_partitioned(plain) else checkpointed_layers(plain)
    if found is None:
        yield
        return
    owner, name = found
    every = getattr(owner, name)
    setattr(owner, name, every[: layers_of_each_kind(plain, every, least)])
    try:
        yield
    finally:
        setattr(owner, name, every)


def layers_of_each_kind(model: nn.Module, layers: nn.ModuleList, least: int) -> int:
    """How many of the first layers hold all kinds: what they are made of, their settings, and what the config says."""
    config = getattr(model, "config", None)
    types = getattr(config.get_text_config(), "layer_types", None) if config is not None else None
    kinds = [(types[number] if types else None, _kind(layer)) for number, layer in enumerate(layers)]
    return max(least, *(kinds.index(kind) + 1 for kind in kinds))


def _kind(layer: nn.Module) -> list[tuple[Any, ...]]:
    """Name, type and settings of each module in it."""
    return [(name, type(module), *_settings(module)) for name, module in layer.named_modules()]


def _settings(module: nn.Module) -> list[tuple[str, Any]]:
    """Its plain attributes, without those that number it."""
    plain = (bool, int, float, str, type(None))
    named = {name: value for name, value in vars(module).items() if isinstance(value, plain) and name not in NUMBERS}
    return sorted(named.items())


def _logits(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    logits: torch.Tensor = model(**inputs).logits
    return logits


def _logits_of_second(
    model: Any, vocabulary: int, shift: int, device: torch.device, read: Read, probe: Probe
) -> torch.Tensor:
    # From the middle of the vocabulary: its ends hold placeholders, for images and the like.
    first = [(vocabulary // 3 + shift * token) % vocabulary for token in range(probe.lengths[0])]
    second = [(vocabulary // 3 + 5 * token) % vocabulary for token in range(probe.lengths[1])]
    batch = FlatCollator()([{"input_ids": ids, "labels": ids} for ids in (first, second)])
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    del inputs["labels"]
    return read(model, inputs)[0, probe.lengths[0] :]


def _plain(model: Any) -> Any:
    """The model inside an engine, a wrapper or an adapter."""
    inner = getattr(model, "module", model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner
