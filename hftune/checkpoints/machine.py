"""What of a machine shapes the last bits of a result; for the manifest."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from hftune.opening.files import read_bytes

_CPUS = Path("/proc/cpuinfo")
_LARGEST = 16 << 20


def describe_machine() -> dict[str, Any]:
    """Processor, its widest instructions that torch uses, threads, GPU and its libraries; not the host's name."""
    found: dict[str, Any] = {
        "system": platform.system(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        # Version of CUDA and cuDNN: they choose the kernels, and with them the order of sums.
        found |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count()}
        found |= {"cuda": torch.version.cuda or torch.version.hip, "cudnn": torch.backends.cudnn.version()}
    return found


def processor(cpus: Path = _CPUS) -> str:
    """The model of the processor as the system names it."""
    if not cpus.is_file():
        return platform.processor() or platform.machine()
    for line in read_bytes(cpus, limit=_LARGEST).decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
