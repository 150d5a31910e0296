"""Sequence parallelism: processes share the tokens of a row; in attention they share its heads instead (Ulysses).

Every process computes a slice of the row. Before attention, an exchange of all with all gives each of them the whole
row for some of the heads, and after it the slice for all of them again (arXiv:2309.14509). Slices, and shares of heads,
may differ by one: rows need no padding to be shared. DeepSpeed 0.19.8 has an attention of the same kind, which drops
the mask, so that packed documents see each other, and takes neither uneven slices nor uneven shares of heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from hftune.distributed import ranks
from hftune.distributed.ranks import Mesh


def shares(total: int, size: int) -> tuple[int, ...]:
    """`total` things for `size` processes, as evenly as possible: the first ones get one more."""
    least, more = divmod(total, size)
    return tuple(least + (number < more) for number in range(size))


@dataclass(frozen=True)
class Heads:
    """Which heads each process attends with. Every process needs at least one.

    Args:
        queries: Heads of queries.
        keys: Heads of keys and values; each serves queries / keys heads of queries.
        size: Processes.
    """

    queries: int
    keys: int
    size: int

    @cached_property
    def query_shares(self) -> tuple[int, ...]:
        """The number of query heads of each process."""
        return shares(self.queries, self.size)

    def query_range(self, rank: int) -> range:
        """The query heads of a process."""
        first = sum(self.query_shares[:rank])
        return range(first, first + self.query_shares[rank])

    def key_range(self, rank: int) -> range:
        """The key heads that those query heads need; several processes may need the same."""
        # Head `h` of queries reads head `h // group` of keys: grouped-query attention.
        mine, group = self.query_range(rank), self.queries // self.keys
        return range(mine[0] // group, mine[-1] // group + 1)

    @cached_property
    def key_shares(self) -> tuple[int, ...]:
        """The number of key heads of each process."""
        return tuple(len(self.key_range(rank)) for rank in range(self.size))

    @cached_property
    def keys_sent(self) -> list[int]:
        """The key heads in the order in which they are sent, first those for process 0."""
        return [head for rank in range(self.size) for head in self.key_range(rank)]

    def key_of_query(self, rank: int) -> list[int] | None:
        """For each query head of a process, the index of its key head among the process's own.

        None where groups are equally large, which attention functions know how to share.
        """
        group, first = self.queries // self.keys, self.key_range(rank)[0]
        places = [head // group - first for head in self.query_range(rank)]
        each, rest = divmod(len(places), self.key_shares[rank])
        # Attention functions repeat each head of keys equally often; other layouts are spelt out.
        even = not rest and places == [place // each for place in range(len(places))]
        return None if even else places


@dataclass(frozen=True)
class SequenceGroup:
    """The processes that share the tokens of a row.

    Args:
        size: How many.
        rank: The place of this one among them: the place of its slice in the row.
        group: Of torch.distributed; None: all processes.
    """

    size: int
    rank: int
    group: Any = None

    def slice_of(self, tokens: int) -> slice:
        """This process's part of a row."""
        sizes = shares(tokens, self.size)
        first = sum(sizes[: self.rank])
        return slice(first, first + sizes[self.rank])

    def to_heads(self, states: torch.Tensor, heads: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
        """From all heads of some tokens to some heads of all tokens. Differentiable; all of the group must call it.

        Args:
            states: (batch, heads, tokens of this process, size), heads in the order of the processes they go to.
            heads: How many go to each process.
            tokens: How many each process has.

        Returns:
            (batch, heads of this process, all tokens, size).
        """
        batch, _, mine, size = states.shape
        # Elements, not bytes or rows: shares of heads and of tokens may both be uneven.
        sent = [count * batch * mine * size for count in heads]
        here = heads[self.rank] * batch * size
        received = [here * count for count in tokens]
        # Heads first, so that what goes to a process lies in one piece.
        parts = _Exchange.apply(states.transpose(0, 1).reshape(-1), self.group, sent, received).split(received)
        shaped = [part.view(-1, batch, count, size) for part, count in zip(parts, tokens, strict=True)]
        return torch.cat(shaped, dim=2).transpose(0, 1)

    def to_tokens(self, states: torch.Tensor, heads: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
        """The inverse of `to_heads`, in the layout that attention functions give.

        Args:
            states: (batch, all tokens, heads of this process, size).
            heads: How many each process has.
            tokens: How many go to each process.

        Returns:
            (batch, tokens of this process, all heads, size).
        """
        batch, _, mine, size = states.shape
        here = tokens[self.rank] * batch * size
        # Tokens first, for the same reason as heads first above.
        flat = torch.cat([part.reshape(-1) for part in states.split(tokens, dim=1)])
        sent = [count * batch * mine * size for count in tokens]
        received = [here * count for count in heads]
        parts = _Exchange.apply(flat, self.group, sent, received).split(received)
        shaped = [part.view(batch, -1, count, size) for part, count in zip(parts, heads, strict=True)]
        return torch.cat(shaped, dim=2)

    def whole(self, part: torch.Tensor, tokens: int) -> torch.Tensor:
        """The whole row, put together from all slices, on every process; without a gradient.

        Args:
            part: (1, tokens of this process, size).
            tokens: Of the row.
        """
        # NCCL and gloo gather tensors of one shape; the first share is the largest.
        sizes = shares(tokens, self.size)
        padded = torch.nn.functional.pad(part.detach(), (0, 0, 0, sizes[0] - part.shape[1])).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([each[:, :count] for each, count in zip(parts, sizes, strict=True)], dim=1)

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over the group, without a gradient."""
        total = value.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def same(self, value: torch.Tensor) -> bool:
        """Whether a scalar on the device is the same in all of the group."""
        found = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(found, value, group=self.group)
        return all(bool(each == value) for each in found)


class _Exchange(torch.autograd.Function):
    """An exchange of elements of flat tensors, so many to and from each process; its gradient is the exchange back."""

    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, group: Any, sent: list[int], received: list[int]) -> torch.Tensor:
        """Exchange; `sent` and `received` are elements to and from each process."""
        ctx.settings = group, received, sent  # swapped: backward sends what forward has received
        out = flat.new_empty(sum(received))
        dist.all_to_all_single(out, flat.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Send each gradient back to the process that its values came from."""
        group, sent, received = ctx.settings
        out = gradient.new_empty(sum(received))
        dist.all_to_all_single(out, gradient.contiguous(), received, sent, group=group)
        # Group and sizes are no tensors: they have no gradient.
        return out, None, None, None


_active: SequenceGroup | None = None


def join_group(mesh: Mesh) -> SequenceGroup:
    """Make the groups, and remember that of this process; all processes must call, once the world is there."""
    global _active
    rank = ranks.rank()
    # Once: a group costs connections, and a second one of the same ranks would be another group.
    if _active is None or _active.size != mesh.sequence:
        groups = {tuple(mesh.sequence_group(each)) for each in range(mesh.world)}
        # torch wants every process to make every group, in one order.
        made = {} if len(groups) == 1 else {members: dist.new_group(list(members)) for members in sorted(groups)}
        mine = tuple(mesh.sequence_group(rank))
        _active = SequenceGroup(mesh.sequence, mesh.sequence_rank(rank), made.get(mine))
    return _active


def active_group() -> SequenceGroup:
    """The group that `join_group` made."""
    assert _active is not None, "a trainer joins its group before a model with this attention runs"
    return _active
