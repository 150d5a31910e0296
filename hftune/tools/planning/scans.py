"""Models that scan a row token by token: traced over short rows, from which long ones are extrapolated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from hftune.compat.installing import method_replaced
from hftune.models.miniature import Miniature
from hftune.tools.planning.tracing import Batch, Part, Profile

TOKENS = (32, 64)
"""Lengths of the rows that are traced. Without its kernels a Mamba layer of 1,024 tokens is 100,000 operations, which
take half a minute on tensors without data; what it keeps and needs grows with the tokens, and not with their square."""


def scans(model: nn.Module) -> bool:
    """Whether a layer passes its state from token to token in a Python loop: Mamba's first version.

    Mamba 2 and linear attention go by chunks of a row (transformers 5.23).
    """
    return any(_is_scan(module) for module in model.modules())


def _is_scan(module: nn.Module) -> bool:
    return type(module).__name__.endswith("MambaMixer")


def profile_of(trace: Callable[[Batch], Profile], miniature: Miniature, batch: Batch) -> Profile:
    """`trace(batch)`, with scanning layers extrapolated and everything else traced at full length."""
    short, longer = _two(trace, batch)
    if short is longer:
        return short
    with _skipped(miniature.model):
        # Scans do nothing in here, so the full length is affordable; attention of a mixed model, not linear in the
        # tokens, needs it.
        exact = trace(batch)
    factor = _factor(batch)
    scanning = [scans(layer) for layer in miniature.layers]

    def mixed(name: str, draw: Callable[[Any, Any, float], Any]) -> tuple[Any, ...]:
        rows = zip(scanning, getattr(short, name), getattr(longer, name), getattr(exact, name), strict=True)
        return tuple(draw(one, other, factor) if here else whole for here, one, other, whole in rows)

    forward, backward, kept = mixed("forward", _part), mixed("backward", _part), mixed("kept", _number)
    return dataclasses.replace(exact, forward=forward, backward=backward, kept=kept)


def peak_of(trace: Callable[[Batch], int], miniature: Miniature, batch: Batch) -> int:
    """The peak of a pass, in bytes: `profile_of` for a trace that knows its peak alone."""
    short, longer = _two(trace, batch)
    if short is longer:
        return short
    with _skipped(miniature.model):
        # A peak alone cannot be put together layer by layer: the larger of both is taken.
        return max(trace(batch), _number(short, longer, _factor(batch)))


def _two(trace: Callable[[Batch], Any], batch: Batch) -> tuple[Any, Any]:
    """The traces over two short rows; for a batch that is short itself one trace, as the same object twice."""
    if batch.tokens <= TOKENS[1]:
        whole = trace(batch)
        return whole, whole
    short, longer = (trace(dataclasses.replace(batch, tokens=tokens)) for tokens in TOKENS)
    return short, longer


@contextmanager
def _skipped(model: nn.Module) -> Iterator[None]:
    """Have scanning modules return their input in the block."""
    with ExitStack() as replaced:
        for module in filter(_is_scan, model.modules()):
            replaced.enter_context(method_replaced(module, "forward", _hand_on))
        yield


def _hand_on(self: nn.Module, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden_states


def _factor(batch: Batch) -> float:
    short, longer = TOKENS
    return (batch.tokens - short) / (longer - short)


def _number(one: int, other: int, factor: float) -> int:
    """The value on the line through both: factor 0 is `one`, 1 is `other`."""
    return round(one + (other - one) * factor)


def _part(one: Part, other: Part, factor: float) -> Part:
    return Part(_number(one.rise, other.rise, factor), _number(one.change, other.change, factor))
