"""Counts the memory of tensors over time, in stretches of a step, by the storages that live; tensors have no data.

Under `FakeTensorMode` a training step runs with the true operators, shapes and dtypes, autograd and autocast, and
allocates nothing. What it would allocate is seen by a dispatch mode: a storage counts from the operator that returns it
until nobody refers to it any more. That is what `torch.cuda.max_memory_allocated` counts, without what kernels use
inside one call.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

GRAIN = 512
"""Bytes to which torch's CUDA allocator rounds up."""


@dataclass
class Stretch:
    """A part of a step.

    Args:
        name: What happens in it.
        start: Bytes that live when it begins.
        peak: The most that live in it.
        end: Bytes that live when it is over.
    """

    name: str
    start: int
    peak: int
    end: int = 0


class Tracker(TorchDispatchMode):
    """Bytes of the storages that operators return, while they live.

    Args:
        known: Tensors that are accounted for elsewhere: weights, their gradients, the inputs.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        # Kept alive, so that no other storage can get the address of one of them.
        self._known = {_address(tensor): tensor for tensor in known}
        self._living: dict[int, tuple[int, str]] = {}
        self.now = 0
        self.stretches = [Stretch("before", 0, 0)]

    def begin(self, name: str) -> None:
        """End the current stretch and begin a new one."""
        self.stretches[-1].end = self.now
        self.stretches.append(Stretch(name, self.now, self.now))

    def of(self, name: str) -> Stretch:
        """The stretch of that name; an empty one if it never began."""
        return next((one for one in self.stretches if one.name == name), Stretch(name, 0, 0))

    def living(self, name: str) -> int:
        """The bytes that were allocated in a stretch and still live."""
        return sum(size for size, born in self._living.values() if born == name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count what it returns. Overrides `TorchDispatchMode`'s: it sees all below autograd."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_iter(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        address = _address(tensor)
        # A view, or the result of an in-place operator: its storage is counted already.
        if address in self._living or address in self._known:
            return
        storage = tensor.untyped_storage()
        size = -(-storage.nbytes() // GRAIN) * GRAIN
        stretch = self.stretches[-1]
        self._living[address] = size, stretch.name
        self.now += size
        stretch.peak = max(stretch.peak, self.now)
        # torch keeps a storage's Python object as long as the storage lives: when it ends, the memory is free.
        weakref.finalize(storage, self._forget, address)

    def _forget(self, address: int) -> None:
        size, _ = self._living.pop(address)
        self.now -= size


def _address(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage, which several tensors may share."""
    # Not `data_ptr`: tensors without data have none.
    return int(tensor.untyped_storage()._cdata)
