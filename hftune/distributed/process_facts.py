"""Facts of each process, so that processes that differ are found before they train together."""

from __future__ import annotations

import functools
import os
import platform
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash

import hftune
from hftune.distributed import ranks
from hftune.distributed.nodes import host

Facts = dict[str, Any]
_LIBRARIES = ("torch", "transformers", "trl", "peft", "deepspeed", "accelerate", "datasets", "bitsandbytes", "hftune")
_ROUNDS = 3  # the first collective of a group also makes its connections


def process_facts() -> Facts:
    """Facts of this process: `versions` and `code` must be the same everywhere, the rest is shown."""
    device, memory = _device()
    return {
        "rank": ranks.rank(),
        "host": host(),
        "local_rank": ranks.local_rank(),
        "device": device,
        "memory": memory,
        "backend": dist.get_backend() if ranks.is_distributed() else "none",
        "versions": versions(),
        "code": {"hftune's files": _code_digest()},
    }


def versions() -> dict[str, str]:
    """Versions of Python, the libraries, CUDA and NCCL; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = torch.__version__ if name == "torch" else metadata.version(name)  # with its build
    if torch.version.cuda:
        found["CUDA"] = torch.version.cuda
    if torch.cuda.is_available() and dist.is_nccl_available():
        nccl: Any = torch.cuda.nccl  # torch has no types for it
        found["NCCL"] = ".".join(map(str, nccl.version()))
    return found


def collective_seconds(device: torch.device) -> float:
    """Seconds of a collective over one number, the fastest of a few; 0 without a group. All ranks must call it."""
    if not ranks.is_distributed():
        return 0.0
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        number = torch.ones(1, device=device)  # anew: all_reduce has summed the last one up
        dist.all_reduce(number)
        # `item` waits for a GPU, so that the time is that of the collective.
        assert int(number.item()) == ranks.world_size(), "every process has added one"
        best = min(best, time.perf_counter() - began)
    return best


def _device() -> tuple[str, int]:
    """The name of what this process computes on, and its memory in bytes."""
    if torch.cuda.is_available():
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        return about.name, int(about.total_memory)
    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator()), 0
    # Windows has no sysconf; memory is only shown.
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return f"CPU, {torch.get_num_threads()} thread(s)", pages


@functools.cache
def _code_digest() -> str:
    """Sixteen hex digits over hftune's own files: an edited checkout has the same version as the original."""
    digest, root = xxhash.xxh3_64(), Path(hftune.__file__).parent
    for file in sorted(root.rglob("*.py")):
        # Names as well, apart from contents by zero bytes: two files that trade places differ.
        digest.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()
