"""Models that go through a row token by token: traced over short rows, which say what long ones take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hftune.models.miniature import Miniature
from hftune.tools.planning.tracing import Batch, Part, Profile

TOKENS = (32, 64)
"""Lengths of the rows that are traced. Without its kernels a Mamba layer of 1,024 tokens is 100,000 operations, which
take half a minute on tensors without data; what it keeps and needs grows with the tokens, and not with their square."""


def scans(model: nn.Module) -> bool:
    """Whether it has layers whose state goes on from token to token in a Python loop: Mamba's first version.

    Mamba 2 and linear attention go by chunks of a row (transformers 5.23).
    """
    return any(_is_scan(module) for module in model.modules())


def _is_scan(module: nn.Module) -> bool:
    return type(module).__name__.endswith("MambaMixer")


def profile_of(trace: Callable[[Batch], Profile], miniature: Miniature, batch: Batch) -> Profile:
    """As `trace(batch)`: layers that scan from short rows, everything else from a pass in which these do nothing."""
    short, longer = _two(trace, batch)
    if short is longer:
        return short
    with _skipped(miniature.model):
        exact = trace(batch)
    factor = _factor(batch)
    scanning = [scans(layer) for layer in miniature.layers]

    def mixed(name: str, draw: Callable[[Any, Any, float], Any]) -> tuple[Any, ...]:
        rows = zip(scanning, getattr(short, name), getattr(longer, name), getattr(exact, name), strict=True)
        return tuple(draw(one, other, factor) if here else whole for here, one, other, whole in rows)

    forward, backward, kept = mixed("forward", _part), mixed("backward", _part), mixed("kept", _number)
    return dataclasses.replace(exact, forward=forward, backward=backward, kept=kept)


def peak_of(trace: Callable[[Batch], int], miniature: Miniature, batch: Batch) -> int:
    """The same of a pass of which only the most that lives is known."""
    short, longer = _two(trace, batch)
    if short is longer:
        return short
    with _skipped(miniature.model):
        return max(trace(batch), _number(short, longer, _factor(batch)))


def _two(trace: Callable[[Batch], Any], batch: Batch) -> tuple[Any, Any]:
    """Over the two short rows; a batch that is short itself is traced once, and given twice."""
    if batch.tokens <= TOKENS[1]:
        whole = trace(batch)
        return whole, whole
    short, longer = (trace(dataclasses.replace(batch, tokens=tokens)) for tokens in TOKENS)
    return short, longer


@contextmanager
def _skipped(model: nn.Module) -> Iterator[None]:
    """Inside, what scans hands its input on."""
    found: list[Any] = [module for module in model.modules() if _is_scan(module)]
    for module in found:
        module.forward = lambda hidden_states, *_, **__: hidden_states
    try:
        yield
    finally:
        for module in found:
            del module.forward  # its class's again


def _factor(batch: Batch) -> float:
    short, longer = TOKENS
    return (batch.tokens - short) / (longer - short)


def _number(one: int, other: int, factor: float) -> int:
    """On the line through both: 0 is at `one`, 1 at `other`."""
    return round(one + (other - one) * factor)


def _part(one: Part, other: Part, factor: float) -> Part:
    return Part(_number(one.rise, other.rise, factor), _number(one.change, other.change, factor))
