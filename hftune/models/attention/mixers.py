"""Layers that carry a state from token to token (gated delta rule, Mamba, short convolutions), and where they end it.

Such a layer mixes tokens by other ways than attention, so that no mask keeps documents of a row apart in it: it is
called with rows of one document each.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import GradientCheckpointingLayer

from hftune.compat.installing import replace_method
from hftune.models.attention.isolation import MIXERS

CACHES = {"past_key_values", "past_key_value", "cache_params", "layer_past", "past_states", "state", "cache"}
"""What transformers' modules call the memory of earlier tokens, which they take only where they mix tokens."""

BORDERS = {"cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "max_length_q", "max_length_k", "seq_idx"}
"""Arguments that tell where documents in a row begin; torch's own path of a mixer refuses them."""

_ATTENTION_TABLE = "ALL_ATTENTION_FUNCTIONS"
"""The name under which transformers' models look up their attention: it is given masks, and keeps to them."""


def mixers_of(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that mix tokens along a row, and are no attention of transformers' interface."""
    # A whole layer hands its cache on.
    parts = {name: part for name, part in model.named_modules() if not isinstance(part, GradientCheckpointingLayer)}
    takers = {name for name, part in parts.items() if name and takes_cache(part)}
    inner = {name for name in takers if not any(_within(other, name) for other in takers)}
    found = {name for name in inner if not is_attention(parts[name])}
    # A convolution's module may take no cache (RecurrentGemma).
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d):
            found.add(name.rpartition(".")[0])
    return [model.get_submodule(name) for name in sorted(found) if not any(_within(name, other) for other in found)]


def _within(name: str, other: str) -> bool:
    return name.startswith(f"{other}.")


def takes_cache(module: nn.Module) -> bool:
    """Whether its forward pass takes a memory of earlier tokens."""
    return not CACHES.isdisjoint(inspect.signature(type(module).forward).parameters)


def is_attention(module: nn.Module) -> bool:
    """Whether it looks up its attention in transformers' table."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and _ATTENTION_TABLE in code.co_names


def call_by_documents(mixer: nn.Module, documents: Any) -> None:
    """Have a mixer end its state where a document ends, in place.

    Args:
        documents: A `Documents`, which says what the row holds that is computed.
    """
    original = type(mixer).forward

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        now: Any = self.hftune_documents
        row = now.row
        several = now.way == MIXERS and row is not None and row.has_several
        # torch's own path of a mixer refuses even the borders of a single document.
        plain = {name: value for name, value in kwargs.items() if name not in BORDERS}
        if several:
            return by_documents(functools.partial(original, self), row.unfolding, args, plain)
        return original(self, *args, **plain)

    # Of the object, so that a copy of the model has a copy of it.
    mixer.hftune_documents = documents
    replace_method(mixer, "forward", forward)


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


@dataclass(frozen=True)
class Group:
    """Documents of a row as rows of their own, padded on the right to the longest of them.

    Args:
        places: LongTensor (tokens,), where in the row their tokens are.
        cells: LongTensor (tokens,), where these come in the padded rows, flattened.
        rows: Documents.
        width: Tokens of the longest.
    """

    places: torch.Tensor
    cells: torch.Tensor
    rows: int
    width: int

    def unfold(self, values: torch.Tensor) -> torch.Tensor:
        """(1, tokens of the row, ...) to (documents, width, ...), padded with 0."""
        picked = values[0].index_select(0, self.places)
        padded = picked.new_zeros((self.rows * self.width, *picked.shape[1:]))
        return padded.index_copy(0, self.cells, picked).unflatten(0, (self.rows, self.width))

    def pick(self, values: torch.Tensor) -> torch.Tensor:
        """(documents, width, ...) to (tokens, ...), without what was padded."""
        return values.flatten(0, 1).index_select(0, self.cells)

    def holds(self, value: Any) -> bool:
        """Whether a value has the shape of these padded rows."""
        return isinstance(value, torch.Tensor) and value.dim() >= 2 and value.shape[:2] == (self.rows, self.width)


class Unfolding:
    """A row cut into groups of documents of similar length.

    Args:
        lengths: Tokens of each document, in the order of the row.
        device: Where the row is.
        whole: Put all documents into one group, however long: where as many calls are needed on every process.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, *, whole: bool) -> None:
        self.tokens = sum(lengths)
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        groups = [list(range(len(lengths)))] if whole else similar(lengths)
        self.groups = [_group([(starts[one], lengths[one]) for one in group], device) for group in groups]
        # Where the tokens of the row are among those of all groups, one group after the other.
        self._order = torch.cat([group.places for group in self.groups]).argsort()

    def fold(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """What each group has become, (documents, width, ...), as the row (1, tokens, ...)."""
        picked = [group.pick(values) for group, values in zip(self.groups, outputs, strict=True)]
        return torch.cat(picked).index_select(0, self._order)[None]

    def reads(self, value: Any) -> bool:
        """Whether a value has a row's tokens along its second dimension."""
        return isinstance(value, torch.Tensor) and value.dim() >= 2 and value.shape[:2] == (1, self.tokens)


def similar(lengths: Sequence[int]) -> list[list[int]]:
    """Numbers of the documents that go together: none is less than half as long as the longest of its group.

    So at most half of what is computed is padding, in at most log2(longest) groups.
    """
    groups: list[list[int]] = []
    longest = 0
    for number in sorted((n for n in range(len(lengths)) if lengths[n]), key=lambda n: -lengths[n]):
        if not groups or 2 * lengths[number] < longest:
            groups.append([])
            longest = lengths[number]
        groups[-1].append(number)
    return groups


def _group(documents: list[tuple[int, int]], device: torch.device) -> Group:
    """Of the documents' (start, length) in the row."""
    width = max(length for _, length in documents)
    places = torch.cat([torch.arange(start, start + length) for start, length in documents])
    cells = torch.cat([torch.arange(row * width, row * width + length) for row, (_, length) in enumerate(documents)])
    return Group(places.to(device), cells.to(device), len(documents), width)
