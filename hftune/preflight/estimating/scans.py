"""Layers that pass a state along a row: traced over short rows, from which long ones are extrapolated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from hftune.compat.installing import method_replaced
from hftune.models.attention.mixers import mixers_of
from hftune.models.miniature import Miniature
from hftune.preflight.estimating.profiles import Batch, Part, Profile

TOKENS = (32, 64)
"""Lengths of the rows that are traced. Without its kernels a Mamba layer of 1,024 tokens is 100,000 operations, which
take half a minute on tensors without data; what it keeps and needs grows with the tokens, and not with their square."""

CHUNKS = (2, 4)
"""The same in chunks, for layers that pass their state from chunk to chunk (Mamba 2, gated delta rules)."""

CHUNK = 64
"""Tokens of a chunk where the layer does not say: that of transformers' delta rules (5.23)."""


def scans(model: nn.Module) -> bool:
    """Whether a layer passes a state along the row in a Python loop."""
    return bool(_scans_of(model))


def _scans_of(model: nn.Module) -> list[tuple[nn.Module, torch.Tensor]]:
    """The modules that do, and the decay of their state.

    The decay is what they have in common: Mamba 1 and 2, gated delta rules, Kimi's delta attention.
    """
    found = ((mixer, _decay(mixer)) for mixer in mixers_of(model))
    return [(mixer, decay) for mixer, decay in found if decay is not None]


def _decay(mixer: nn.Module) -> torch.Tensor | None:
    # Some have it in a part of theirs.
    return next((one for name, one in mixer.named_parameters() if name.rpartition(".")[2] == "A_log"), None)


def lengths_of(model: nn.Module) -> tuple[int, int]:
    """The lengths of the rows that are traced in the place of long ones."""
    largest = max((_chunk(module, decay) for module, decay in _scans_of(model)), default=0)
    return (CHUNKS[0] * largest, CHUNKS[1] * largest) if largest else TOKENS


def _chunk(module: nn.Module, decay: torch.Tensor) -> int:
    """Tokens of a chunk; 0 where the state passes from token to token."""
    # Mamba's first version: a decay for each element of the state, not one for each head.
    if sum(size > 1 for size in decay.shape) > 1:
        return 0
    return int(getattr(module, "chunk_size", None) or CHUNK)


def profile_of(trace: Callable[[Batch], Profile], miniature: Miniature, batch: Batch) -> Profile:
    """`trace(batch)`, with scanning layers extrapolated and everything else traced at full length."""
    lengths = lengths_of(miniature.model)
    short, longer = _two(trace, batch, lengths)
    if short is longer:
        return short
    with _skipped(miniature.model):
        # Scans do nothing in here, so the full length is affordable; attention of a mixed model, not linear in the
        # tokens, needs it.
        exact = trace(batch)
    factor = _factor(batch, lengths)
    scanning = [scans(layer) for layer in miniature.layers]

    def mixed(name: str, draw: Callable[[Any, Any, float], Any]) -> tuple[Any, ...]:
        rows = zip(scanning, getattr(short, name), getattr(longer, name), getattr(exact, name), strict=True)
        return tuple(draw(one, other, factor) if here else whole for here, one, other, whole in rows)

    forward, backward, kept = mixed("forward", _part), mixed("backward", _part), mixed("kept", _number)
    return dataclasses.replace(exact, forward=forward, backward=backward, kept=kept)


def peak_of(trace: Callable[[Batch], int], miniature: Miniature, batch: Batch) -> int:
    """The peak of a pass, in bytes: `profile_of` for a trace that knows its peak alone."""
    lengths = lengths_of(miniature.model)
    short, longer = _two(trace, batch, lengths)
    if short is longer:
        return short
    with _skipped(miniature.model):
        # A peak alone cannot be put together layer by layer: the larger of both is taken.
        return max(trace(batch), _number(short, longer, _factor(batch, lengths)))


def _two(trace: Callable[[Batch], Any], batch: Batch, lengths: tuple[int, int]) -> tuple[Any, Any]:
    """The traces over two short rows; for a batch that is short itself one trace, as the same object twice."""
    if batch.tokens <= lengths[1]:
        whole = trace(batch)
        return whole, whole
    short, longer = (trace(dataclasses.replace(batch, tokens=tokens)) for tokens in lengths)
    return short, longer


@contextmanager
def _skipped(model: nn.Module) -> Iterator[None]:
    """Have scanning modules return their input in the block."""
    with ExitStack() as replaced:
        for module, _ in _scans_of(model):
            replaced.enter_context(method_replaced(module, "forward", _hand_on))
        yield


def _hand_on(self: nn.Module, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden_states


def _factor(batch: Batch, lengths: tuple[int, int]) -> float:
    short, longer = lengths
    return (batch.tokens - short) / (longer - short)


def _number(one: int, other: int, factor: float) -> int:
    """The value on the line through both: factor 0 is `one`, 1 is `other`."""
    return round(one + (other - one) * factor)


def _part(one: Part, other: Part, factor: float) -> Part:
    return Part(_number(one.rise, other.rise, factor), _number(one.change, other.change, factor))
