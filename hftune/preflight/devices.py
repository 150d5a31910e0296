"""What a run trains on: known accelerators by name, by their memory alone, or those that are here."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hftune.errors import ArgumentError, did_you_mean

GIB = 2**30


@dataclass(frozen=True)
class Device:
    """One accelerator, or the processor.

    Args:
        name: As `--gpus` takes it.
        memory: Bytes that a process can have, the driver's own taken off.
        tflops: Dense multiplications and additions a second in bf16 (fp16 where there is no bf16), in 10^12; None: not
            known, and no time is estimated.
        memory_bandwidth: GB/s between it and its memory.
        link: GB/s to its neighbours, one way: NVLink, Infinity Fabric or PCIe.
        pcie: GB/s to the machine's memory, one way.
        bf16: Whether it computes in bf16.
    """

    name: str
    memory: float
    tflops: float | None = None
    memory_bandwidth: float = 1000.0
    link: float = 25.0
    pcie: float = 25.0
    bf16: bool = True

    @property
    def on_cpu(self) -> bool:
        """Whether it is the processor."""
        return self.name == "CPU"


@dataclass(frozen=True)
class Cluster:
    """All that a run has.

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


def _device(
    name: str, mib: int, tflops: float, bandwidth: float, link: float, pcie: float, *, bf16: bool = True
) -> Device:
    return Device(name, mib * 2**20, tflops, bandwidth, link, pcie, bf16)


# Memory as nvidia-smi or rocm-smi name it; speeds from the makers' data sheets, without sparsity. NVLink and PCIe: half
# of the sum of both ways.
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("B200", 183359, 2250, 8000, 900, 60),
        _device("H200", 143771, 989, 4800, 450, 55),
        _device("H100", 81559, 989, 3350, 450, 55),
        _device("A100-80", 81920, 312, 2039, 300, 25),
        _device("A100-40", 40960, 312, 1555, 300, 25),
        _device("MI300X", 196592, 1307, 5300, 448, 55),
        _device("L40S", 46068, 362, 864, 25, 25),
        _device("4090", 24564, 165, 1008, 25, 25),
        _device("3090", 24576, 71, 936, 25, 25),
        _device("A10", 23028, 125, 600, 25, 25),
        _device("T4", 15360, 65, 300, 12, 12, bf16=False),
        _device("V100-32", 32768, 125, 900, 150, 12, bf16=False),
        _device("V100-16", 16384, 125, 900, 150, 12, bf16=False),
    )
}
ALIASES = {"A100": "A100-80", "V100": "V100-16", "RTX4090": "4090", "RTX3090": "3090"}

_ASKED = re.compile(r"(?:(\d+)\s*[x*]\s*)?(.+)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(GiB|GB|G)", re.IGNORECASE)

CPU_TFLOPS_A_CORE = 0.04
"""10^12 multiplications and additions a second in float32 that a core of a server does in training: an assumption."""


def cluster_of(asked: str, nodes: int = 1) -> Cluster:
    """`8xH200`, `H100` or `4x24GiB`, in each of so many machines.

    Raises:
        ArgumentError: No known device, or none of it.
    """
    match = _ASKED.fullmatch(asked.strip())
    assert match is not None, "anything matches"
    count, name = int(match[1] or 1), match[2].strip()
    size = _SIZE.fullmatch(name)
    found = None
    if size is not None:
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
    """What is in this machine and free now, in each of so many machines alike."""
    import torch

    from hftune.preflight.free_memory import free_memory

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    free = free_memory(on_cpu=count == 0, device=torch.cuda.current_device() if count else 0)
    if count == 0:
        threads = torch.get_num_threads()
        return Cluster(Device("CPU", free.host, CPU_TFLOPS_A_CORE * threads, 50.0), 1, nodes, free.host)
    # What is free has this process's own context taken off already, where it has one.
    here = replace(known_gpu(), memory=free.device, bf16=torch.cuda.is_bf16_supported())
    return Cluster(here, count, nodes, free.host)


def known_gpu() -> Device:
    """This process's GPU as `DEVICES` has it, by name and size; one of no known speed where it has not."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    words = properties.name.upper().replace("-", " ").split()
    named = [device for key, device in DEVICES.items() if key.split("-")[0] in words]
    unknown = Device(properties.name, properties.total_memory)
    return min(named, key=lambda device: abs(device.memory - properties.total_memory), default=unknown)
