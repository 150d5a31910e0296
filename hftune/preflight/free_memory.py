"""Free memory: of a GPU, and of the machine within the limits of a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from hftune.preflight.memory import Free

_UNLIMITED = 1 << 60
"""cgroup v1 says 2^63 less a page where there is no limit."""


def free_memory(*, on_cpu: bool, device: int = 0) -> Free:
    """The memory that is free now.

    Args:
        on_cpu: Whether the run trains on the CPU.
        device: The GPU of this process.
    """
    # A container's limit may lie below what the machine has free, and a limit above it is no promise.
    host = float(min([psutil.virtual_memory().available, *cgroup_free()]))
    if on_cpu or not torch.cuda.is_available():
        return Free(device=host, host=host)
    return Free(device=float(torch.cuda.mem_get_info(device)[0]), host=host)


def cgroup_free(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """Bytes left under each memory limit of this process; nothing without limits.

    File cache that can be dropped counts as free.

    Args:
        root: Where cgroups are mounted, version 2 or (below `memory`) version 1.
        own: The file that names this process's groups.
    """
    names = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for folder in _groups(root, own):
        for limit_name, used_name in names:
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _UNLIMITED:
                yield max(0, limit - used + _droppable(folder / "memory.stat"))


def _groups(root: Path, own: Path) -> Iterator[Path]:
    """The process's cgroups and those above them; in a container its own is often mounted as the root."""
    lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
    for base, marks in ((root, ("0::",)), (root / "memory", (":memory:",))):
        paths = [line.rsplit(":", 1)[1] for line in lines if any(mark in line for mark in marks)]
        # A limit of any group above holds for this one as well.
        seen = {base}
        for path in paths:
            folder = base / path.strip("/")
            seen |= {folder, *(parent for parent in folder.parents if parent.is_relative_to(base))}
        yield from sorted(seen)


def _number(file: Path) -> int | None:
    """The number in a file; None where there is no file, or no limit (`max`)."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _droppable(stat: Path) -> int:
    try:
        lines = stat.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    # The kernel drops these pages before it ends a process for want of memory.
    values = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(values.get("total_inactive_file") or values.get("inactive_file") or 0)
