"""A row of documents as padded rows of one document each, and back: for layers that know no borders in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


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

    def unfold(self, values: torch.Tensor, filler: float = 0) -> torch.Tensor:
        """(1, tokens of the row, ...) to (documents, width, ...)."""
        picked = values[0].index_select(0, self.places)
        padded = picked.new_full((self.rows * self.width, *picked.shape[1:]), filler)
        return padded.index_copy(0, self.cells, picked).unflatten(0, (self.rows, self.width))

    def pick(self, values: torch.Tensor) -> torch.Tensor:
        """(documents, width, ...) to (tokens, ...), without what was padded."""
        return values.flatten(0, 1).index_select(0, self.cells)

    def holds(self, value: Any) -> bool:
        """Whether a value has the shape of these padded rows."""
        return isinstance(value, torch.Tensor) and value.dim() >= 2 and value.shape[:2] == (self.rows, self.width)

    @property
    def mask(self) -> torch.Tensor:
        """Which cells hold a token, int64 (documents, width): 1 or 0, an `attention_mask`."""
        ones = self.cells.new_zeros(self.rows * self.width).index_fill(0, self.cells, 1)
        return ones.view(self.rows, self.width)


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
