"""Documents that begin alike share one copy of that beginning in a packed row.

The rows of a conversation whose template rewrites earlier turns begin with the same messages, and the conversations of
an agent with the same system prompt and tools. One document of such a group stands whole in the row; of the others
there is what follows the tokens that it shares with them, at the positions that it had (see
`models/attention/shared_prompts.py`). Only documents next to each other are compared.
"""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np
import xxhash

from hftune.constants import IGNORE_INDEX
from hftune.data.packing.bins import IntArray, Segments
from hftune.data.packing.int_columns import IntColumn

LEAST = 64
"""Tokens. A shorter beginning is computed as quickly as it is copied, and nearly all chats share their first words."""


def shared_segments(ids: IntColumn, labels: IntColumn, capacity: int) -> tuple[Segments, IntArray]:
    """The segments of all documents but empty ones, each document whole or without what it shares.

    Args:
        ids: Token ids of the documents.
        labels: Their labels.
        capacity: Tokens that the segments of a group may have together.

    Returns:
        The segments, those of a group next to each other and its whole document first; and where groups begin, and the
        end of the last: (groups + 1,). A document that shares nothing is a group of its own.
    """
    kept = np.flatnonzero(ids.lengths)
    found: list[_Group] = []
    for _, numbers in groupby(kept.tolist(), key=lambda number: _head(ids, number)):
        found += _groups([*numbers], ids, labels, capacity)
    document = [number for group in found for number in group.documents]
    behind = np.array([tokens for group in found for tokens in group.behind], dtype=np.int64)
    documents = np.array(document, dtype=np.int64)
    offsets = np.cumsum([0, *(len(group.documents) for group in found)])
    return Segments(documents, behind, ids.lengths[documents] - behind, behind), offsets


def _head(ids: IntColumn, number: int) -> int:
    """The same for documents that begin alike, or by a rare chance; a short document is like no other."""
    if ids.lengths[number] <= LEAST:
        return number
    return xxhash.xxh3_64_intdigest(ids.of(number)[:LEAST].tobytes())


class _Group:
    """Documents of a row that share their beginnings with the last of them."""

    def __init__(self, first: int) -> None:
        self.members: list[int] = [first]
        # Of all members but the last.
        self.shared: list[int] = []

    @property
    def documents(self) -> list[int]:
        """The whole document first."""
        return [self.members[-1], *self.members[:-1]]

    @property
    def behind(self) -> list[int]:
        """How many tokens of the whole document stand before what there is of each of `documents`."""
        return [0, *self.shared]


def _groups(numbers: list[int], ids: IntColumn, labels: IntColumn, capacity: int) -> list[_Group]:
    """Groups of documents that follow each other; the next one begins where the last gains nothing by growing."""
    groups = [_Group(numbers[0])]
    if len(numbers) == 1:
        return groups
    first_label = {number: _first_label(labels.of(number)) for number in numbers}
    for _, number in pairwise(numbers):
        group, length = groups[-1], int(ids.lengths[number])
        shared = [min(_common(ids.of(member), ids.of(number)), first_label[member] - 1) for member in group.members]
        tokens = length + sum(int(ids.lengths[member]) for member in group.members) - sum(shared)
        # A conversation's last row holds the earlier ones; another conversation may share the system prompt alone.
        if min(shared) >= LEAST and sum(shared) > sum(group.shared) and tokens <= capacity:
            group.members.append(number)
            group.shared = shared
        else:
            groups.append(_Group(number))
    return groups


def _first_label(labels: np.ndarray) -> int:
    """The place of the first label that is trained, or the last one's: a document keeps a token that predicts it."""
    # The first one of a document is never trained: nothing before it could predict it.
    trained = np.flatnonzero(labels[1:] != IGNORE_INDEX)
    return 1 + int(trained[0]) if len(trained) else len(labels) - 1


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens both begin with."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
