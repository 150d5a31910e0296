"""The hardware that a run is planned for: accelerators by name, by their memory alone, or those of this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch

from hftune.distributed import launch
from hftune.errors import ArgumentError, did_you_mean
from hftune.preflight.devices import DEVICES, GIB, Device, known_gpu
from hftune.preflight.free_memory import free_memory


@dataclass(frozen=True)
class Cluster:
    """The devices and machines of a run.

    Args:
        device: Each of them.
        per_node: In a machine.
        nodes: Machines.
        host: Bytes of memory that are free in a machine; None: not known.
    """

    device: Device
    per_node: int = 1
    nodes: int = 1
    host: float | None = None

    @property
    def count(self) -> int:
        """All devices."""
        return self.per_node * self.nodes

    def __str__(self) -> str:
        of_nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        return f"{of_nodes}{self.per_node} x {self.device.name} ({self.device.memory / GIB:.1f} GiB)"


# A name without a size stands for one of its sizes. The plan prints the memory that was taken, so a wrong guess shows.
ALIASES = {"A100": "A100-80", "V100": "V100-16", "RTX4090": "4090", "RTX3090": "3090"}

_ASKED = re.compile(r"(?:(\d+)\s*[x*]\s*)?(.+)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB|G)", re.IGNORECASE)

CPU_TFLOPS_A_CORE = 0.04
"""10^12 multiplications and additions a second in float32 that a core of a server does in training: an assumption."""


def cluster_of(asked: str, nodes: int = 1) -> Cluster:
    """The cluster that `8xH200`, `H100` or `4x24GiB` means, in each of `nodes` machines.

    Raises:
        ArgumentError: No known device, or none of it.
    """
    match = _ASKED.fullmatch(asked.strip())
    assert match is not None, "anything matches"
    count, name = int(match[1] or 1), match[2].strip()
    size = _SIZE.fullmatch(name)
    found = None
    if size is not None:
        # GB as on data sheets, 10^9; GiB and the bare G as tools that report memory count, 2^30.
        unit = GIB if size[2].lower() != "gb" else 10**9
        found = Device(name, float(size[1]) * unit)
    else:
        known = {key.upper(): device for key, device in DEVICES.items()}
        known |= {other: DEVICES[key] for other, key in ALIASES.items()}
        found = known.get(name.upper().replace(" ", ""))
        if found is None:
            listed = f"One of: {', '.join(DEVICES)}; or its memory: {count}x24GiB"
            raise ArgumentError(
                f"{name} is no device that hftune knows",
                place="--gpus",
                fix=f"{did_you_mean(name.upper(), known)} {listed}".strip(),
            )
    if count < 1 or nodes < 1:
        raise ArgumentError("no device at all", place="--gpus, --nodes", fix="give 1 or more")
    return Cluster(found, count, nodes)


def cluster_here(nodes: int = 1) -> Cluster:
    """The devices of this machine with the memory that is free now, in each of `nodes` machines alike."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    free = free_memory(on_cpu=count == 0, device=torch.cuda.current_device() if count else 0)
    if count == 0:
        # torch's threads and not the machine's cores: OMP_NUM_THREADS and a container's quota bound what a run gets.
        threads = torch.get_num_threads()
        return Cluster(Device("CPU", free.host, CPU_TFLOPS_A_CORE * threads, 50.0, major=0), 1, nodes, free.host)
    # What is free has this process's own context taken off already, where it has one.
    here = replace(known_gpu(), memory=free.device, bf16=launch.supports_bf16())
    return Cluster(here, count, nodes, free.host)
